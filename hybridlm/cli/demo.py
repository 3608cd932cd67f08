"""`hybridlm demo`: the embedded model answers eight stories in one batch and one by one."""

import time
from collections.abc import Sequence
from typing import Annotated

import jax
import typer
from rich.table import Table
from rich.text import Text

from hybridlm import demo as embedded
from hybridlm.cli.options import Debug, Verbose, console_for_table, reported, table_of
from hybridlm.loading import load
from hybridlm.requests.results import Completion

STORIES = 8
MIN_RIGHT = 7
"""Least number of right answers; the model answers at least 97 of 100."""
MAX_TOKENS = 24


def demo(
    seed: Annotated[int, typer.Option(min=0, max=10**8, help="Other stories, which training never used either.")] = 0,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Answer eight stories in one batch and one by one, and compare the answers.

    Each question can be answered from its own story only, so a sequence that leaked into another one would show up as a
    wrong name. Needs no network. The exit status is 1 if an answer in the batch differs from the one alone, or if fewer
    than seven are right.
    """
    with reported(debug, verbose):
        stories = [embedded.story(embedded.UNSEEN[seed * STORIES + i]) for i in range(STORIES)]
        lm = load(embedded.path(), lanes=STORIES)
        console = console_for_table()
        console.print(f"{lm!r} on {jax.devices()[0].device_kind}, jax {jax.__version__}")
        console.print(f"\nThe first of {STORIES} stories:\n{stories[0].prompt}\n")
        prompts = [story.prompt for story in stories]
        answers, rights, lines = list[list[Completion]](), list[int](), list[str]()
        for name, size in (("in one batch", STORIES), ("one by one", 1)):
            lm.generate(prompts[:size], max_tokens=MAX_TOKENS)  # compiles
            start, batches = time.perf_counter(), range(0, STORIES, size)
            parts = [lm.generate(prompts[i : i + size], max_tokens=MAX_TOKENS) for i in batches]
            seconds = time.perf_counter() - start
            answers.append([completion for part in parts for completion in part])
            rights.append(sum(map(_is_right, stories, answers[-1])))
            lines.append(f"{name}: {_speed(answers[-1], seconds)}; {rights[-1]} of {STORIES} right")
        console.print(_table(stories, *answers))
        for line in lines:
            console.print(line)
        different = sum(a.token_ids != b.token_ids for a, b in zip(*answers, strict=True))
        if different:
            typer.echo(f"error: {different} of {STORIES} answers differ between the batch and alone", err=True)
            raise typer.Exit(1)
        console.print(f"all {STORIES} answers are equal, token by token")
        if min(rights) < MIN_RIGHT:
            expected = f"expected at least {MIN_RIGHT}: on this machine the model does not compute what it has learned"
            typer.echo(f"error: {min(rights)} of {STORIES} answers are right, {expected}", err=True)
            raise typer.Exit(1)


def _speed(completions: Sequence[Completion], seconds: float) -> str:
    prompt = sum(len(completion.prompt_token_ids) for completion in completions)
    sampled = sum(len(completion.token_ids) for completion in completions)
    return (
        f"{prompt} tokens read, {sampled} generated in {seconds:.2f} s "
        f"({(prompt + sampled) / seconds:,.0f} tokens/s, {sampled / seconds:,.0f} of them generated)"
    )


def _table(stories: Sequence[embedded.Story], batch: Sequence[Completion], singles: Sequence[Completion]) -> Table:
    table = table_of("question", "answer in the batch", "answer alone", "", "equal", text_columns=5, overflow="fold")
    for story, completion, single in zip(stories, batch, singles, strict=True):
        right = Text("right", "green") if _is_right(story, completion) else Text(f"wrong: {story.answer}", "red")
        equal = Text("yes", "green") if completion.token_ids == single.token_ids else Text("NO", "bold red")
        texts = ((answer.text or "").strip() for answer in (completion, single))
        table.add_row(story.question, *texts, right, equal)
    return table


def _is_right(story: embedded.Story, completion: Completion) -> bool:
    return story.answered_by(completion.text or "")
