"""Commands for rows of a file; options are fields of tasks and `FileOptions`."""

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from hybridlm.cli.options import LOADING, Loading, Model, loads
from hybridlm.engine.config import STEP_OPTIONS
from hybridlm.openai_batch.batch_task import BatchFileReport, BatchTask
from hybridlm.score_files.divergence_task import DivergenceFileReport, DivergenceTask
from hybridlm.score_files.options import FileOptions
from hybridlm.score_files.score_task import ScoreTask
from hybridlm.score_files.task import ScoreFileReport, Task
from hybridlm.score_files.text_tasks import ClassifyTask, DecideTask, EmbedTask

EXIT_BAD_ROWS = 3
"""Exit status of a complete run with errors of rows."""
TEXTS = (
    ".jsonl, .csv or .parquet: rows with text, token_ids or input_ids, and perhaps an id; or .txt: a text per line. "
    ".jsonl.gz, .csv.gz and .txt.gz are decompressed."
)
OUTPUT = ".jsonl, .csv, .jsonl.gz, .csv.gz or .parquet, in the order of the input: id, {}."
CONTINUES = """An interrupted run continues when it is run again: finished rows are in OUTPUT.parts until all are done.
A row that cannot be answered gets an error instead; the exit status is 3 then."""


def file_command(
    task: type[Task],
    summary: str,
    input: Any,
    output: Any,
    items: str = "texts",
    options: Sequence[str] = (*STEP_OPTIONS, "adapter"),
    **defaults: Any,
) -> Callable[..., None]:
    """Return the command of a task.

    Args:
        input, output: `typer.Argument` or `typer.Option`.
        options: of `hybridlm.load`, with `defaults`.
    """

    def command(loading: Loading, *, model: str, input: Path, output: Path, work: Any, run: FileOptions) -> None:
        if not jax.process_index():  # the first of several processes alone reads and writes files
            work.check(input, output, run)
        lm = loading.load(model)
        if isinstance(work, DivergenceTask):
            work = replace(work, other=loading.load(str(work.other), adapter=None))
        if lm.run_worker():
            return
        began = time.perf_counter()
        report = lm.run_file(work, input, output, **vars(replace(run, progress="lines")))
        seconds = time.perf_counter() - began
        if isinstance(report, BatchFileReport):
            _print_answers(output, report, seconds)
        else:
            _print_rows(report, items, seconds)

    types = {
        "loading": Loading, "model": Model, "input": Annotated[Path, input], "output": Annotated[Path, output],
        "work": task, "run": FileOptions,
    }  # fmt: skip
    parameters = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=type) for name, type in types.items()]
    command.__dict__["__signature__"] = inspect.Signature(parameters)
    command.__name__ = task.__name__.removesuffix("Task").lower()
    command.__doc__ = f"{summary}\n\n{CONTINUES}"
    return loads(*options, **defaults)(command)


def _print_rows(report: ScoreFileReport, items: str, seconds: float) -> None:
    if isinstance(report, DivergenceFileReport):
        means = "no means, they need a text of two tokens"
        if report.predicted:
            means = (
                f"KL {report.mean_kl:.6g}, reverse KL {report.mean_reverse_kl:.6g}, Jensen-Shannon "
                f"{report.mean_js:.6g} nats, same most likely token {report.agreement:.2%}"
            )
        typer.echo(f"{report.predicted:,} predicted tokens: {means}")
    resumed = f"; {report.kept:,} rows were done by an earlier run" if report.kept else ""
    saved, share = report.prefix_tokens_saved, report.token_share
    shared = f"; {saved:,} tokens of common prefixes were not computed again" if saved else ""
    places = "" if share is None else f"; {share:.0%} of the {report.step_places:,} computed places were tokens"
    lines = [
        f"{report.texts:,} {items} of {report.tokens:,} tokens in {seconds:.1f} s{resumed}{shared}{places} "
        "(compilation included)"
    ]
    if report.shifted:
        lines.append(
            f"{report.shifted:,} completions are scored from within the prompt, because a token spans both "
            "(boundary_shift)"
        )
    if report.errors:
        lines.append(f"{report.errors:,} rows have an error instead (--strict stops at one)")
    for line in lines:
        typer.echo(f"{report.output}: {line}", err=True)
    if report.errors:
        raise typer.Exit(EXIT_BAD_ROWS)


def _print_answers(output: Path, report: BatchFileReport, seconds: float) -> None:
    tokens = report.prompt_tokens + report.completion_tokens
    resumed = f" ({report.kept:,} lines were done by an earlier run)" if report.kept else ""
    saved = report.prefix_tokens_saved
    shared = f" ({saved:,} of common prefixes not again)" if saved else ""
    typer.echo(
        f"{output}: {report.responses:,} responses{resumed}, {report.prompt_tokens:,} tokens read{shared} and "
        f"{report.completion_tokens:,} generated in {seconds:.1f} s ({tokens / seconds:,.0f} tokens/s, compilation "
        "included)",
        err=True,
    )
    if report.bad_lines:
        lines = report.responses + report.bad_lines
        typer.echo(f"{output}: {report.bad_lines:,} of {lines:,} lines have an error instead, such as", err=True)
        for error in report.first_errors:
            typer.echo(f"  {error}", err=True)
        raise typer.Exit(EXIT_BAD_ROWS)


def _argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help)


def _output(*columns: str) -> Any:
    return _argument("OUTPUT", OUTPUT.format(", ".join(columns)))


score = file_command(
    ScoreTask,
    "Write the log-probability of every token of every text of a file.",
    _argument(
        "INPUT",
        ".jsonl, .csv or .parquet: rows with text, token_ids or input_ids, prompt and completion, or messages with a "
        "last answer to score, and perhaps an id; or .txt: a text per line. .jsonl.gz, .csv.gz and .txt.gz are "
        "decompressed.",
    ),
    _output("token_ids", "logprobs (of a text null first)", "sum_logprob", "perplexity"),
)
decide = file_command(
    DecideTask,
    "Answer typed questions about a state, of every line of a file, without generating a token.",
    _argument("INPUT", ".jsonl; every line has state, questions, and an id, if you like (docs/scoring.md)."),
    _argument("OUTPUT", ".jsonl or .csv, in the order of the input: id and answers."),
    items="requests",
)
classify = file_command(
    ClassifyTask,
    "Classify every text of a file, or compute its reward, by the head of the checkpoint (score.weight).",
    _argument("INPUT", TEXTS),
    _output("logits", "label", "probabilities"),
)
embed = file_command(
    EmbedTask, "Embed every text of a file.", _argument("INPUT", TEXTS), _output("embedding")
)  # fmt: skip
divergence = file_command(
    DivergenceTask,
    "Compare the distributions of two models with one tokenizer in the place of every token of a file.\n\nThe means "
    "over all tokens are printed.",
    _argument("INPUT", TEXTS),
    _output("token_ids", "kl", "reverse_kl", "js", "same_top", "means"),
)
batch = file_command(
    BatchTask,
    "Answer a file of OpenAI Batch requests to /v1/completions and /v1/chat/completions.",
    typer.Option("--input-file", "-i", help='A request per line: {"custom_id", "method", "url", "body"}; or .csv.'),
    typer.Option("--output-file", "-o", help="In the order of the input: custom_id, response, error."),
    options=LOADING,
    prefix_cache="512MB",  # lines with common prefixes are answered together, so that some states are enough
)
