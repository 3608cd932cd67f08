"""Options of `load` for all commands; errors without traceback."""

import inspect
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import jax
import typer
from jax.sharding import AbstractMesh
from rich.console import Console
from rich.table import Table

from hybridlm.cli.groups import expanded, gathered, parameters_of
from hybridlm.cli.signals import ended_by_signals, number_of
from hybridlm.cli.standard_output import concerns_standard_output, drop_rest
from hybridlm.devices.mesh import read_mesh, read_sizes
from hybridlm.engine.abstract import SERVING
from hybridlm.engine.config import EngineConfig
from hybridlm.errors import GrammarError, MissingExtra, NumericalError
from hybridlm.files.atomic import replacing
from hybridlm.files.json_lines import parse_object
from hybridlm.lm import LM
from hybridlm.loading import load
from hybridlm.multiprocess.environment import EXIT_PEER_LOST, Disagreement, ProcessLost
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
"""Errors of input, disk, device or audit; any other is a bug with a traceback."""

MODEL = typer.Option("--model", "-m", help="Checkpoint directory, GGUF file, or the id of a model on the Hub.")
Model = Annotated[str, MODEL]


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """Options of the chat template."""

    chat: Annotated[
        bool, typer.Option("--chat", help="Apply the checkpoint's chat template: each prompt is a message.")
    ] = False
    system: Annotated[str | None, typer.Option(help="With --chat: the system message before each prompt.")] = None
    thinking: Annotated[
        bool | None,
        typer.Option("--enable-thinking/--disable-thinking", help="With --chat: sets the template's enable_thinking."),
    ] = None
    chat_template_kwargs: Annotated[
        str | None, typer.Option(help="With --chat: variables of the template, a JSON object.", metavar="JSON")
    ] = None


Full = Annotated[bool, typer.Option("--full", help="Only the steps of all lanes, not those of fewer sequences.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Name the steps loaded from the store and the compiled ones, with their seconds."
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


LOADING = tuple(option.name for option in fields(EngineConfig) if option.metadata)

Own = ParamSpec("Own")


@dataclass(frozen=True)
class Loading:
    """Options of `hybridlm.load` from the command line; the mesh is unparsed text."""

    settings: dict[str, Any]

    @property
    def mesh_sizes(self) -> dict[str, int] | None:
        mesh = self.settings["mesh"]
        return None if mesh is None else read_sizes(mesh)

    @property
    def chosen(self) -> dict[str, bool]:
        """Whether an option differs from its default, by flag."""
        return {
            f"--{name.replace('_', '-')}": value not in (None, getattr(EngineConfig, name))
            for name, value in self.settings.items()
        }

    def config(self, mesh: AbstractMesh | None = None) -> EngineConfig:
        """Return the options of an engine without weights; `SERVING` has the defaults."""
        settings = {name: value for name, value in self.settings.items() if value is not None}
        return replace(SERVING, **settings | {"mesh": mesh})

    def load(self, model: str, **options: Any) -> LM:
        """Load a model; `options` replace settings."""
        settings = self.settings | options
        if "speculate" in settings and settings["speculate"] is None and self.chosen["--draft-tokens"]:
            raise ValueError("--draft-tokens: expected --speculate with it")
        if settings.get("prefix_cache") == "0":
            del settings["prefix_cache"]
        return load(model, **{**settings, "mesh": read_mesh(settings.get("mesh"))})

    def leading(self, model: str) -> LM | None:
        """Load a model; None in worker processes, at their end."""
        lm = self.load(model)
        return None if lm.run_worker() else lm


def loads(*names: str, **defaults: Any) -> Callable[[Callable[Concatenate[Loading, Own], None]], Callable[..., None]]:
    """Give a command options of `hybridlm.load`, --verbose and --debug, and report its errors.

    Args:
        *names: options of `load`, the command's first argument; all of `LOADING` by default.
        **defaults: of these options.
    """

    def decorate(command: Callable[Concatenate[Loading, Own], None]) -> Callable[..., None]:
        _, *parameters = inspect.signature(command).parameters.values()
        loading = [each for each in parameters_of(EngineConfig, **defaults) if each.name in (names or LOADING)]

        @wraps(command)
        def with_options(*, verbose: bool, debug: bool, **values: Any) -> None:
            with reported(debug, verbose), ended_by_signals():
                options = Loading({option.name: values.pop(option.name) for option in loading})
                command(options, **gathered(parameters, values))  # type: ignore[call-arg]  # typer read its own options

        reporting = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
            for name, annotation in (("verbose", Verbose), ("debug", Debug))
        ]
        with_options.__dict__["__signature__"] = inspect.Signature([*expanded(parameters), *loading, *reporting])
        return with_options

    return decorate


def write_json(output: Path, value: Any, default: Callable[[Any], Any] | None = None) -> None:
    """Write strict JSON: NaN and infinities become null, and a warning counts them."""
    missing: list[str] = []
    plain = json.loads(json.dumps(value, default=default), parse_constant=missing.append)
    with replacing(output) as file:
        file.write(json.dumps(plain, indent=2, allow_nan=False) + "\n")
    if missing:
        typer.echo(f"warning: {output}: {len(missing):,} numbers are NaN or infinite and are written as null", err=True)


def json_object(text: str | None, option: str) -> dict[str, Any]:
    """Return the JSON object of an option, {} for None; raises ValueError for others."""
    try:
        return {} if text is None else parse_object(text.encode())
    except ValueError as error:
        raise ValueError(f"{option}: expected a JSON object: {error}") from error


@contextmanager
def reported(debug: bool, verbose: bool = False) -> Iterator[None]:
    """Report exceptions of a command, and with `verbose` hybridlm's log, as messages.

    The exit status is 1 for errors, 70 if another process failed, and 128 + N after signal N, as in a shell: 130 after
    Ctrl-C, 143 after SIGTERM, 141 if the reader of standard output closed it.
    """
    with warnings.catch_warnings(), _logged() if verbose else nullcontext():
        warnings.showwarning = lambda message, *rest: typer.echo(f"warning: {message}", err=True)
        try:
            yield
            sys.stdout.flush()
        except KeyboardInterrupt as interrupt:
            for line in (*interrupt.args, *_notes(interrupt)):
                typer.echo(line, err=True)
            raise typer.Exit(128 + number_of(interrupt)) from None
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
    """Return a console without markup, with the terminal's width, in files the tables'."""
    return Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else width)


def table_of(*headings: str, text_columns: int = 1, title: str | None = None, **columns: Any) -> Table:
    table = Table(title=title, title_justify="left", title_style="")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < text_columns else "right", **columns)
    return table


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fspath(error.filename)}: {error.strerror}"
    return str(error) or type(error).__name__


def _notes(error: BaseException) -> list[str]:
    """Return the notes on an error, without JAX's notes about tracebacks."""
    return [note for note in getattr(error, "__notes__", ()) if "\n" not in note]
