"""`hybridlm generate`: continue prompts from the command line, a file or standard input."""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import jax
import typer

from hybridlm.cli.options import EXPECTED, SAMPLING, Loading, Model, json_object, loads, setting
from hybridlm.files.json_lines import Id, dump, finite, numbered_lines, parse_object, read_id, read_item
from hybridlm.files.strict_json import MEGABYTE, read_text
from hybridlm.grammars.structured_outputs import MAX_GRAMMAR_LENGTH, StructuredOutputs
from hybridlm.lm import LM
from hybridlm.requests.results import Completion
from hybridlm.requests.sampling_params import SamplingParams, draw_seed
from hybridlm.requests.validation import check_count, check_settings
from hybridlm.session import Event
from ir_passes.files.strict_json import parse_json

MAX_TOOLS_BYTES = 16 * MEGABYTE
MAX_SHOWN_FAULTS = 20
"""Bad lines that an error lists; a file of another kind has nothing else."""


class NamedPrompt(NamedTuple):
    """A text or token ids, and its id in the output."""

    id: Id
    item: str | list[Any]


@loads(together=SAMPLING)
def generate(
    loading: Loading,
    model: Model,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT", help="Default: the lines of --file or of standard input."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help='A prompt per line; in a .jsonl file an object with "prompt", "text" or "token_ids".'),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the chat template: each prompt is a message.")] = False,
    system: Annotated[str | None, typer.Option(help="With --chat: the system message before each prompt.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="A string that ends a completion; repeatable.")] = None,
    stop_id: Annotated[list[int] | None, typer.Option(help="A token id that ends a completion; repeatable.")] = None,
    ignore_eos: Annotated[bool, setting("ignore_eos", "--ignore-eos")] = SamplingParams.ignore_eos,
    logit_bias: Annotated[str | None, setting("logit_bias", "--logit-bias", note="A JSON object.")] = None,
    bad_word: Annotated[list[str] | None, typer.Option(help="A string that is never sampled; repeatable.")] = None,
    keep_special_tokens: Annotated[
        bool, typer.Option("--keep-special-tokens", help="Print special tokens, too.")
    ] = not SamplingParams.skip_special_tokens,
    thinking: Annotated[
        bool | None,
        typer.Option("--enable-thinking/--disable-thinking", help="With --chat: for templates that ask it."),
    ] = None,
    json_schema: Annotated[
        Path | None, typer.Option(help="A file with a JSON schema, which completions follow.", metavar="FILE")
    ] = None,
    regex: Annotated[str | None, typer.Option(help="A regular expression, which completions match.")] = None,
    choice: Annotated[list[str] | None, typer.Option(help="A text that completions may be; repeatable.")] = None,
    chat_template_kwargs: Annotated[
        str | None, typer.Option(help="With --chat: variables of the template, a JSON object.", metavar="JSON")
    ] = None,
    tools: Annotated[
        Path | None,
        typer.Option(help="With --chat: functions that the model may call, a JSON file with OpenAI's list of tools."),
    ] = None,
    n: Annotated[int, typer.Option("--n", help="Completions per prompt.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="A JSON object per completion.")] = False,
) -> None:
    """Continue prompts. A single completion is streamed, several are printed in the order of the input.

    A checkpoint without a tokenizer takes token ids from a .jsonl file and prints token ids.
    """
    for option in ("logprobs", "prompt_logprobs"):
        if loading.together[option] is not None and not json:
            raise typer.BadParameter("is printed with --json only", param_hint=f"--{option.replace('_', '-')}")
    if not chat and any(one is not None for one in (system, thinking, chat_template_kwargs, tools)):
        hint = "--system, --enable-thinking, --chat-template-kwargs, --tools"
        raise typer.BadParameter("needs --chat", param_hint=hint)
    # Of several processes the first one alone has the prompts.
    given = [] if jax.process_index() else _read_prompts(prompts or [], file)
    variables = json_object(chat_template_kwargs, "--chat-template-kwargs")
    functions = [] if tools is None else _read_tools(tools)
    form = _structured_outputs(json_schema, regex, choice)
    bias = None if logit_bias is None else cast(Any, json_object(logit_bias, "--logit-bias"))
    params = SamplingParams(
        **loading.together,
        stop=[*(stop or ()), *(stop_id or ())],
        ignore_eos=ignore_eos,
        logit_bias=bias,
        bad_words=bad_word or (),
        skip_special_tokens=not keep_special_tokens,
        structured_outputs=form,
    )
    check_count(n, "n")
    check_settings(params)
    if (lm := loading.leading(model)) is None:
        return
    before = [] if system is None else [{"role": "system", "content": system}]
    items = [_chat_ids(lm, one.item, before, thinking, variables, functions) if chat else one.item for one in given]
    if params.seed is None and params.temperature > 0:
        params = replace(params, seed=draw_seed())
        if not json:
            typer.echo(f"seed: {params.seed} (--seed repeats this run)", err=True)
    full: list[int] = []
    events = _noting_full(lm.stream(items, params, n=n), params.max_tokens, full)

    def name(index: int) -> str:
        return f"prompt {index // n + 1}" + (f", completion {index % n + 1}" if n > 1 else "")

    if json:
        _write_in_order(events, len(given) * n, lambda index, one: dump(_row(given, n, index, one)) + "\n")
    elif len(given) * n == 1:
        _stream(events, lm.tokenizer is not None)
    else:
        _write_in_order(events, len(given) * n, lambda index, one: f"==> {name(index)} <==\n{_shown(one)}\n")
    if full:
        first = f"{len(full):,} completions, the first of {name(min(full))}," if len(full) > 1 else name(full[0])
        verb = "end" if len(full) > 1 else "ends"
        typer.echo(
            f"warning: {first} {verb} before --max-tokens: the context of {lm.context:,} tokens is full (--context)",
            err=True,
        )


def _read_prompts(arguments: list[str], file: Path | None) -> list[NamedPrompt]:
    if arguments and file is not None:
        raise typer.BadParameter("give prompts as arguments or in a file, not both", param_hint="--file")
    if arguments:
        return [NamedPrompt(None, argument) for argument in arguments]
    if file is not None:
        with file.open("rb") as source:
            return _read_lines(source, str(file), file.suffix.lower() == ".jsonl")
    if sys.stdin.isatty():
        raise typer.BadParameter("give prompts as arguments, with --file or on standard input", param_hint="PROMPT")
    return _read_lines(sys.stdin.buffer, "standard input", False)


def _read_lines(source: Iterable[bytes], name: str, jsonl: bool) -> list[NamedPrompt]:
    prompts, faults = [], []
    for number, line in numbered_lines(source):
        try:
            prompts.append(_read_json(line) if jsonl else _read_text(line))
        except ValueError as error:
            faults.append(f"  line {number}: {error}")
    if faults:
        count = "1 bad line" if len(faults) == 1 else f"{len(faults):,} bad lines"
        more = len(faults) - MAX_SHOWN_FAULTS
        shown = faults[:MAX_SHOWN_FAULTS] + ([f"  and {more:,} more"] if more > 0 else [])
        raise ValueError("\n".join([f"{name}: {count}", *shown]))
    if not prompts:
        raise ValueError(f"{name}: has no prompts")
    return prompts


def _read_json(line: bytes) -> NamedPrompt:
    value = parse_object(line)
    return NamedPrompt(read_id(value), read_item(value, ("prompt", "text"))[1])


def _read_text(line: bytes) -> NamedPrompt:
    if not line:
        raise ValueError("expected a prompt, the line is blank")
    try:
        return NamedPrompt(None, line.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"expected UTF-8: {error}") from error


def _read_tools(file: Path) -> list[Any]:
    try:
        value = parse_json(read_text(file, MAX_TOOLS_BYTES))
    except OSError as error:
        raise ValueError(f"--tools: {error}") from error
    except ValueError as error:
        raise ValueError(f"--tools: {file}: {error}") from error
    if not isinstance(value, list) or not value:
        raise ValueError(f"--tools: {file}: expected a list of tools, found {value!r:.80}")
    return value


def _structured_outputs(
    json_schema: Path | None, regex: str | None, choice: list[str] | None
) -> StructuredOutputs | None:
    if (json_schema is not None) + (regex is not None) + bool(choice) > 1:
        raise typer.BadParameter("give one of them", param_hint="--json-schema, --regex, --choice")
    if json_schema is not None:
        if json_schema.stat().st_size > MAX_GRAMMAR_LENGTH:
            raise ValueError(f"{json_schema}: expected at most {MAX_GRAMMAR_LENGTH:,} bytes")
        return {"json": json_schema.read_text("utf-8")}
    if regex is not None:
        return {"regex": regex}
    return {"choice": choice} if choice else None


def _chat_ids(
    lm: LM,
    message: str | list[Any],
    before: list[dict[str, str]],
    enable_thinking: bool | None,
    variables: dict[str, Any],
    tools: list[Any],
) -> list[int]:
    if lm.tokenizer is None:
        raise ValueError("--chat: the checkpoint has no tokenizer.json")
    if not isinstance(message, str):
        raise ValueError("--chat: expected messages as text, got token ids")
    variables = {**lm.tokenizer.thinking_variables(enable_thinking, tools=tools or None), **variables}
    return lm.tokenizer.encode_with_tools([*before, {"role": "user", "content": message}], tools, **variables)


def _noting_full(events: Iterator[Event], max_tokens: int, full: list[int]) -> Iterator[Event]:
    """Yield the events, and add to `full` the requests that ended because the context is full."""
    for event in events:
        one = event.completion
        if one is not None and one.finish_reason == "length" and len(one.token_ids) < max_tokens:
            full.append(event.index)
        yield event


def _write_in_order(events: Iterator[Event], total: int, shown: Callable[[int, Completion], str]) -> None:
    """Print completions in the order of the requests, each as soon as those before it are finished.

    After an interruption or an error those that had to wait for an earlier one are printed, too.
    """
    ready: dict[int, Completion] = {}
    following = 0
    try:
        for event in events:
            if event.completion is not None:
                ready[event.index] = event.completion
            while following in ready:
                _write(shown(following, ready[following]))
                del ready[following]
                following += 1
    except (KeyboardInterrupt, *EXPECTED) as error:
        for index in sorted(ready):
            _write(shown(index, ready[index]))
        error.add_note(f"{following + len(ready):,} of {total:,} completions were finished and are printed")
        raise


def _stream(events: Iterator[Event], text: bool) -> None:
    """Print text, or token ids without a tokenizer, as it is generated; end the line also after an interruption."""
    separator = ""
    try:
        for event in events:
            if text:
                _write(event.text)
            elif event.token is not None:
                _write(f"{separator}{event.token}")
                separator = " "
    finally:
        _write("\n")


def _shown(completion: Completion) -> str:
    return " ".join(map(str, completion.token_ids)) if completion.text is None else completion.text


def _row(given: list[NamedPrompt], n: int, index: int, completion: Completion) -> dict[str, Any]:
    tops, of_prompt = completion.top_logprobs, completion.prompt_logprobs
    return {
        "prompt": index // n,
        "completion": index % n,
        "id": given[index // n].id,
        "text": completion.text,
        "reasoning": completion.reasoning,
        "answer": completion.answer,
        "finish_reason": completion.finish_reason,
        "token_ids": completion.token_ids,
        "prompt_token_ids": completion.prompt_token_ids,
        "seed": completion.seed,
        "logprobs": None if completion.logprobs is None else [finite(value) for value in completion.logprobs],
        "top_logprobs": None if tops is None else [_tokens(top) for top in tops],
        **({} if of_prompt is None else {"prompt_logprobs": [top and _tokens(top) for top in of_prompt]}),
    }


def _tokens(logprobs: dict[int, float]) -> list[dict[str, Any]]:
    return [{"token_id": token, "logprob": finite(value)} for token, value in logprobs.items()]


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
