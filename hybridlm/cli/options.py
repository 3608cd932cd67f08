"""Options of `load` and of sampling for all commands, and errors as one message instead of a traceback."""

import inspect
import json
import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Concatenate, ParamSpec, get_type_hints

import jax
import typer
from rich.console import Console
from rich.table import Table

from hybridlm.cli.signals import ended_by_signals
from hybridlm.cli.standard_output import concerns_standard_output, drop_rest
from hybridlm.devices.mesh import read_mesh, read_sizes
from hybridlm.drafting.drafters import DEFAULT_DRAFT_TOKENS
from hybridlm.errors import GrammarError, MissingExtra, NumericalError
from hybridlm.files.atomic import replacing
from hybridlm.files.json_lines import parse_object
from hybridlm.lm import LM
from hybridlm.loading import load
from hybridlm.multiprocess.environment import EXIT_PEER_LOST, Disagreement, ProcessLost
from hybridlm.requests.sampling_params import PlainSettings, SamplingParams
from ir_passes import AuditError

EXPECTED = (
    ValueError,
    TypeError,
    OSError,
    MissingExtra,
    NumericalError,
    GrammarError,
    AuditError,
    jax.errors.JaxRuntimeError,
    ProcessLost,
    Disagreement,
)
"""Errors of wrong input, a full disk or device, or a program that fails its audit. Any other is a bug and keeps its
traceback."""

Model = Annotated[
    str, typer.Option("--model", "-m", help="Checkpoint directory, GGUF file, or the id of a model on the Hub.")
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Say which steps came from the store, which were compiled, and how long each took."
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def _option(kind: Any, default: Any, help: str, **shown: Any) -> tuple[Any, Any]:
    return Annotated[kind, typer.Option(help=help, **shown)], default


_DRAFTERS = 'Speculative decoding: "ngram" drafts from repeated text, "mtp" from the multi-token-prediction head.'
LOADING: dict[str, tuple[Any, Any]] = {
    "lanes": _option(int, 8, "Most sequences in one batch (continuous batching)."),
    "context": _option(int | None, None, "Most tokens of a sequence.", show_default="4096, or the model's if less"),
    "dtype": _option(
        str | None, None, "bfloat16, float16 or float32.", show_default="the checkpoint's", metavar="NAME"
    ),
    "chunk": _option(int | None, None, "Tokens per sequence in a prefill step.", show_default="128, or the context"),
    "speculate": _option(str | None, None, _DRAFTERS, metavar="NAME"),
    "draft_tokens": _option(int, DEFAULT_DRAFT_TOKENS, "Most draft tokens of a sequence in a step."),
    "prefix_cache": _option(
        str | None, None, 'Memory for the states of common prefixes (radix cache), such as "512MB"; "0" for none.'
    ),
    "mesh": _option(
        str | None, None, "Run on a mesh of devices: data=2,model=2,expert=1 (docs/devices.md).", metavar="SIZES"
    ),
    "kernels": _option(
        str | None,
        None,
        "auto: kernels of our own where the platform has them; off: XLA's programs alone.",
        metavar="off|auto",
        show_default="auto on a CPU, off elsewhere",
    ),
    "adapter": _option(
        str | None, None, "LoRA adapter that PEFT saved, merged at load: its directory or id on the Hub.", metavar="DIR"
    ),
}
"""Options of `hybridlm.load` by the names of its arguments: annotation and default."""

Own = ParamSpec("Own")


@dataclass(frozen=True)
class Loading:
    """Options of `hybridlm.load` as they were given to a command.

    Attributes:
        settings: by name, the mesh as the option has it.
        together: other options that the command takes together, by name.
    """

    settings: dict[str, Any]
    together: dict[str, Any]

    @property
    def settings_of_a_target(self) -> dict[str, Any]:
        """Settings of `load` for `target_engine`, which makes the mesh of the target's devices."""
        mesh = self.settings["mesh"]
        return {**self.settings, "mesh": None if mesh is None else read_sizes(mesh)}

    def load(self, model: str, **others: Any) -> LM:
        """Load a model; `others` are settings in the place of those given."""
        settings = self.settings | others
        if settings.get("prefix_cache") == "0":
            del settings["prefix_cache"]
        return load(model, **{**settings, "mesh": read_mesh(settings.get("mesh"))})

    def leading(self, model: str) -> LM | None:
        """Load the model of a command; None where this process has followed another one to its end."""
        lm = self.load(model)
        return None if lm.run_worker() else lm


def loads(
    *names: str, together: Mapping[str, tuple[Any, Any]] = MappingProxyType({}), **defaults: Any
) -> Callable[[Callable[Concatenate[Loading, Own], None]], Callable[..., None]]:
    """Give a command options of `hybridlm.load` behind its own, with --verbose and --debug, and report its errors.

    The command takes them together, as its first argument.

    Args:
        *names: which of `LOADING`; all by default.
        together: other options that it takes together, by name: annotation and default.
        **defaults: default values that differ.
    """
    chosen = names or tuple(LOADING)

    def decorate(command: Callable[Concatenate[Loading, Own], None]) -> Callable[..., None]:
        @wraps(command)
        def with_options(*, verbose: bool, debug: bool, **given: Any) -> None:
            with reported(debug, verbose), ended_by_signals():
                settings, others = ({name: given.pop(name) for name in each} for each in (chosen, together))
                command(Loading(settings, others), **given)  # type: ignore[call-arg]  # typer read its own options

        own = list(inspect.signature(command).parameters.values())[1:]
        options = {**together}
        options |= {name: (LOADING[name][0], defaults.get(name, LOADING[name][1])) for name in chosen}
        options |= {"verbose": (Verbose, False), "debug": (Debug, False)}
        keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
        keywords += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in options.items()
        ]
        with_options.__dict__["__signature__"] = inspect.Signature(keywords)
        return with_options

    return decorate


def setting(name: str, *flags: str, note: str = "") -> Any:
    """Return the option of a field of `SamplingParams`; its help is what the class says of the field.

    Args:
        name: of the field.
        flags: spellings of the option; by default made of the name.
        note: follows the help.
    """
    docstring = inspect.getdoc(SamplingParams) or ""  # None under python -OO
    said = re.search(rf"^ +{name}: (.*?)(?=^ +\w+: |\Z)", docstring, re.DOTALL | re.MULTILINE)
    text = " ".join(said[1].split()) if said else ""
    return typer.Option(*flags, help=f"{text[:1].upper()}{text[1:]} {note}".strip())


def _setting_options() -> Iterator[tuple[str, tuple[Any, Any]]]:
    types = get_type_hints(PlainSettings)
    for field in fields(PlainSettings):
        flags = [f"--{field.name.replace('_', '-')}"] if types[field.name] is bool else []
        note = "With --json." if field.name in ("logprobs", "prompt_logprobs") else ""
        yield field.name, (Annotated[types[field.name], setting(field.name, *flags, note=note)], field.default)


SAMPLING = {name: option for name, option in _setting_options() if name != "skip_special_tokens"}
"""Options of the plain settings of `SamplingParams`, but the one that is asked the other way round."""


def write_json(output: Path, value: Any, default: Callable[[Any], Any] | None = None) -> None:
    """Write strict JSON: NaN and infinities become null, and a warning counts them.

    Args:
        output: file to replace or to create.
        value: of objects, lists and scalars.
        default: makes such a value of any other one.
    """
    missing: list[str] = []
    plain = json.loads(json.dumps(value, default=default), parse_constant=missing.append)
    with replacing(output) as file:
        file.write(json.dumps(plain, indent=2, allow_nan=False) + "\n")
    if missing:
        typer.echo(f"warning: {output}: {len(missing):,} numbers are NaN or infinite and are written as null", err=True)


def json_object(text: str | None, option: str) -> dict[str, Any]:
    """Return the JSON object of an option; an empty one for None.

    Raises:
        ValueError: something else.
    """
    try:
        return {} if text is None else parse_object(text.encode())
    except ValueError as error:
        raise ValueError(f"{option}: expected a JSON object: {error}") from error


@contextmanager
def reported(debug: bool, verbose: bool = False) -> Iterator[None]:
    """Turn the exceptions of a command into a message on standard error and an exit status.

    With `verbose` the log of hybridlm goes there, too.

    The status is 1 for errors, 70 if another process failed, and 128 + N after signal N, as in a shell: 130 after
    Ctrl-C, 143 after SIGTERM, 141 if the reader of standard output closed it.
    """
    with warnings.catch_warnings(), _logged() if verbose else nullcontext():
        warnings.showwarning = _show_warning
        try:
            yield
            sys.stdout.flush()
        except KeyboardInterrupt as interrupt:
            for line in (*interrupt.args, *_notes(interrupt)):
                typer.echo(line, err=True)
            raise typer.Exit(128 + getattr(interrupt, "number", signal.SIGINT)) from None
        except BrokenPipeError:
            drop_rest()
            raise typer.Exit(141) from None
        except EXPECTED as error:
            if concerns_standard_output(error):
                drop_rest()
            if debug:
                raise
            typer.echo(f"error: {'; '.join([_message(error), *_notes(error)])}", err=True)
            raise typer.Exit(EXIT_PEER_LOST if isinstance(error, ProcessLost | Disagreement) else 1) from None


@contextmanager
def _logged() -> Iterator[None]:
    log, handler = logging.getLogger("hybridlm"), logging.StreamHandler()
    level, spread = log.level, log.propagate
    handler.setFormatter(logging.Formatter("%(relativeCreated)7.0f ms  %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = spread


def console_for_table(width: int = 120) -> Console:
    """Return a console as wide as the terminal; in a file or a pipe, of a width that a table needs."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else width)


def table_of(*headings: str, left: int = 1, title: str | None = None, **columns: Any) -> Table:
    """Return an empty table.

    Args:
        *headings: of the columns.
        left: number of columns that are justified left; the others right.
        title: None for none.
        **columns: settings of every column.
    """
    table = Table(title=title, title_justify="left", title_style="")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < left else "right", **columns)
    return table


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fspath(error.filename)}: {error.strerror}"
    return str(error) or type(error).__name__


def _notes(error: BaseException) -> list[str]:
    """Return the notes on an error, without JAX's of several lines, which concern tracebacks."""
    return [note for note in getattr(error, "__notes__", ()) if "\n" not in note]


def _show_warning(message: Warning | str, *rest: Any) -> None:
    typer.echo(f"warning: {message}", err=True)
