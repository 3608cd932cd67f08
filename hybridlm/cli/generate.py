"""`hybridlm generate`: continue prompts from the command line, a file or standard input."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, cast

import jax
import typer

from hybridlm.cli.files.prompts import NamedPrompt, read_prompts
from hybridlm.cli.groups import setting
from hybridlm.cli.options import EXPECTED, ChatOptions, Loading, Model, json_object, loads
from hybridlm.files.json_lines import dump, finite
from hybridlm.files.strict_json import MEGABYTE, read_text
from hybridlm.grammars.structured_outputs import MAX_GRAMMAR_LENGTH, StructuredOutputs
from hybridlm.lm import LM
from hybridlm.requests.results import Completion
from hybridlm.requests.sampling_params import PlainSettings, SamplingParams, draw_seed
from hybridlm.requests.validation import check_count, check_settings
from hybridlm.session import Event
from hybridlm.text.chat_template import joined_variables
from ir_passes.files.strict_json import parse_json

MAX_TOOLS_BYTES = 16 * MEGABYTE


@dataclass(frozen=True, kw_only=True)
class RequestOptions(PlainSettings):
    """Sampling settings, with the others of `SamplingParams` as text, tools and the number of completions."""

    logprobs: Annotated[int | None, setting("logprobs", note="With --json.")] = None
    prompt_logprobs: Annotated[int | None, setting("prompt_logprobs", note="With --json.")] = None
    skip_special_tokens: Annotated[
        bool,
        typer.Option("--skip-special-tokens/--keep-special-tokens", help="Leave special tokens out, or print them."),
    ] = True
    stop: Annotated[list[str] | None, typer.Option(help="A string that ends a completion; repeatable.")] = None
    stop_id: Annotated[list[int] | None, typer.Option(help="A token id that ends a completion; repeatable.")] = None
    ignore_eos: Annotated[bool, setting("ignore_eos", "--ignore-eos")] = SamplingParams.ignore_eos
    logit_bias: Annotated[str | None, setting("logit_bias", "--logit-bias", note="A JSON object.")] = None
    bad_word: Annotated[list[str] | None, typer.Option(help="A string that is never sampled; repeatable.")] = None
    allowed_token_id: Annotated[
        list[int] | None, typer.Option(help="Sample only this token id; repeatable for more ids.")
    ] = None
    json_schema: Annotated[
        Path | None, typer.Option(help="A file with a JSON schema, which completions follow.", metavar="FILE")
    ] = None
    regex: Annotated[str | None, typer.Option(help="A regular expression, which completions match.")] = None
    choice: Annotated[list[str] | None, typer.Option(help="A text that completions may be; repeatable.")] = None
    tools: Annotated[
        Path | None,
        typer.Option(help="With --chat: functions that the model may call, a JSON file with OpenAI's list of tools."),
    ] = None
    n: Annotated[int, typer.Option("--n", help="Completions per prompt.")] = 1

    def params(self) -> SamplingParams:
        values = asdict(self)
        for name in ("json_schema", "regex", "choice", "tools", "n"):
            del values[name]
        stop = [*(values.pop("stop") or ()), *(values.pop("stop_id") or ())]
        bias, bad_words = values.pop("logit_bias"), values.pop("bad_word") or ()
        allowed_ids = values.pop("allowed_token_id") or None
        return SamplingParams(
            **values,
            stop=stop,
            logit_bias=None if bias is None else cast(Any, json_object(bias, "--logit-bias")),
            bad_words=bad_words,
            allowed_token_ids=allowed_ids,
            structured_outputs=self._structured_outputs(),
        )

    def _structured_outputs(self) -> StructuredOutputs | None:
        if (self.json_schema is not None) + (self.regex is not None) + bool(self.choice) > 1:
            raise typer.BadParameter("give one of them", param_hint="--json-schema, --regex, --choice")
        if self.json_schema is not None:
            if self.json_schema.stat().st_size > MAX_GRAMMAR_LENGTH:
                raise ValueError(f"{self.json_schema}: expected at most {MAX_GRAMMAR_LENGTH:,} bytes")
            return {"json": self.json_schema.read_text("utf-8")}
        if self.regex is not None:
            return {"regex": self.regex}
        return {"choice": self.choice} if self.choice else None


@loads()
def generate(
    loading: Loading,
    *,
    model: Model,
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT", help="Default: the lines of --file or of standard input.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help='A prompt per line; in a .jsonl file an object with "prompt", "text" or "token_ids".'),
    ] = None,
    chat: ChatOptions,
    options: RequestOptions,
    json: Annotated[bool, typer.Option("--json", help="A JSON object per completion.")] = False,
) -> None:
    """Continue prompts.

    A single completion is streamed, several are printed in the order of the input.

    A checkpoint without a tokenizer takes token ids from a .jsonl file and prints token ids.
    """
    for option in ("logprobs", "prompt_logprobs"):
        if getattr(options, option) is not None and not json:
            raise typer.BadParameter("is printed with --json only", param_hint=f"--{option.replace('_', '-')}")
    if options.think_end is not None and options.thinking_budget is None and not json:
        raise typer.BadParameter("expected --thinking-budget or --json with it", param_hint="--think-end")
    if not chat.chat and any(
        option is not None for option in (chat.system, chat.thinking, chat.chat_template_kwargs, options.tools)
    ):
        hint = "--system, --enable-thinking, --chat-template-kwargs, --tools"
        raise typer.BadParameter("needs --chat", param_hint=hint)
    # Only the first of several processes has the prompts.
    rows = [] if jax.process_index() else read_prompts(prompts, file)
    variables = json_object(chat.chat_template_kwargs, "--chat-template-kwargs")
    functions = [] if options.tools is None else _read_tools(options.tools)
    params, n = options.params(), options.n
    check_count(n, "n")
    check_settings(params)
    if (lm := loading.leading(model)) is None:
        return
    items = [_chat_ids(lm, item, chat, variables, functions) if chat.chat else item for _, item in rows]
    if params.seed is None and params.temperature > 0:
        params = replace(params, seed=draw_seed())
        if not json:
            typer.echo(f"seed: {params.seed} (--seed repeats this run)", err=True)
    full: list[int] = []
    events = _noting_full(lm.stream(items, params, n=n), params.max_tokens, full)

    def name(index: int) -> str:
        return f"prompt {index // n + 1}" + (f", completion {index % n + 1}" if n > 1 else "")

    if json:
        _write_in_order(events, len(rows) * n, lambda index, completion: dump(_row(rows, n, index, completion)) + "\n")
    elif len(rows) * n == 1:
        _stream(events, lm.tokenizer is not None)
    else:
        _write_in_order(
            events, len(rows) * n, lambda index, completion: f"==> {name(index)} <==\n{_shown(completion)}\n"
        )
    if full:
        first = f"{len(full):,} completions, the first of {name(min(full))}," if len(full) > 1 else name(full[0])
        verb = "end" if len(full) > 1 else "ends"
        typer.echo(
            f"warning: {first} {verb} before --max-tokens: the context of {lm.context:,} tokens is full (--context)",
            err=True,
        )


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


def _chat_ids(
    lm: LM, message: str | list[Any], chat: ChatOptions, variables: dict[str, Any], tools: list[Any]
) -> list[int]:
    if lm.tokenizer is None:
        raise ValueError("--chat: the checkpoint has no tokenizer.json")
    if not isinstance(message, str):
        raise ValueError("--chat: expected messages as text, got token ids")
    variables = joined_variables(lm.tokenizer.thinking_variables(chat.thinking, tools=tools or None), variables)
    messages = [] if chat.system is None else [{"role": "system", "content": chat.system}]
    return lm.tokenizer.encode_with_tools([*messages, {"role": "user", "content": message}], tools, **variables)


def _noting_full(events: Iterator[Event], max_tokens: int, full: list[int]) -> Iterator[Event]:
    for event in events:
        completion = event.completion
        if completion is not None and completion.finish_reason == "length" and len(completion.token_ids) < max_tokens:
            full.append(event.index)
        yield event


def _write_in_order(events: Iterator[Event], total: int, text_of: Callable[[int, Completion], str]) -> None:
    """Print completions in the order of requests, each as early as possible.

    After an interruption, waiting ones are printed, too.
    """
    ready: dict[int, Completion] = {}
    following = 0
    try:
        for event in events:
            if event.completion is not None:
                ready[event.index] = event.completion
            while following in ready:
                text = text_of(following, ready[following])
                # No call of `_write`: Python handles signals when a Python function starts, which would lose the text
                # here. After an interrupted write the stream keeps the rest, and prints it with the next text.
                del ready[following]
                following += 1
                sys.stdout.write(text)
                sys.stdout.flush()
    except (KeyboardInterrupt, *EXPECTED) as error:
        for index in sorted(ready):
            _write(text_of(index, ready[index]))
        error.add_note(f"{following + len(ready):,} of {total:,} completions were finished and are printed")
        raise


def _stream(events: Iterator[Event], text: bool) -> None:
    """Stream text, or token ids without a tokenizer; always end the line."""
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


def _row(prompts: list[NamedPrompt], n: int, index: int, completion: Completion) -> dict[str, Any]:
    tops, of_prompt = completion.top_logprobs, completion.prompt_logprobs
    return {
        "prompt": index // n,
        "completion": index % n,
        "id": prompts[index // n][0],
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
