"""Options of `load` and of sampling for all commands, and errors as one message instead of a traceback."""

import inspect
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any

import jax
import typer
from rich.console import Console

from hybridlm.errors import GrammarError, MissingExtra, NumericalError
from hybridlm.files.json_lines import parse_object
from hybridlm.multiprocess.environment import EXIT_PEER_LOST, Disagreement, ProcessLost
from hybridlm.requests.sampling_params import SamplingParams
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
Lanes = Annotated[int, typer.Option(help="Most sequences in one batch (continuous batching).")]
PrefixCache = Annotated[
    str | None, typer.Option(help='Memory for the states of common prefixes (radix cache), such as "512MB".')
]
Context = Annotated[
    int | None, typer.Option(help="Most tokens of a sequence.", show_default="4096, or the model's if less")
]
Dtype = Annotated[
    str | None, typer.Option(help="bfloat16, float16 or float32.", show_default="the checkpoint's", metavar="NAME")
]
Chunk = Annotated[
    int | None, typer.Option(help="Tokens per sequence in a prefill step.", show_default="128, or the context")
]
Drafting = Annotated[
    str | None,
    typer.Option(
        "--speculate",
        help='Speculative decoding: "ngram" drafts from repeated text, "mtp" from the multi-token-prediction head.',
        metavar="NAME",
    ),
]
DraftTokens = Annotated[int, typer.Option("--draft-tokens", help="Most draft tokens of a sequence in a step.")]
OnMesh = Annotated[
    str | None,
    typer.Option(
        "--mesh", help="Run on a mesh of devices: data=2,model=2,expert=1 (docs/devices.md).", metavar="SIZES"
    ),
]
Kernels = Annotated[
    str | None,
    typer.Option(
        help="auto: kernels of our own where the platform has them; off: XLA's programs alone.",
        metavar="off|auto",
        show_default="auto on a CPU, off elsewhere",
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Say which steps came from the store, which were compiled, and how long each took."
    ),
]
Adapter = Annotated[
    str | None,
    typer.Option(
        "--adapter", help="LoRA adapter that PEFT saved, merged at load: its directory or id on the Hub.", metavar="DIR"
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


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

    The status is 1 for errors, 70 if another process failed, 130 after Ctrl-C, and 141 if the reader of standard output
    closed it (as a shell reports both signals).
    """
    with warnings.catch_warnings(), _logged() if verbose else nullcontext():
        warnings.showwarning = _show_warning
        try:
            yield
            sys.stdout.flush()
        except KeyboardInterrupt as interrupt:
            for note in _notes(interrupt):
                typer.echo(note, err=True)
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # Buffered output would raise again when the interpreter exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        except EXPECTED as error:
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


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fspath(error.filename)}: {error.strerror}"
    return str(error) or type(error).__name__


def _notes(error: BaseException) -> list[str]:
    """Return the notes on an error, without JAX's of several lines, which concern tracebacks."""
    return [note for note in getattr(error, "__notes__", ()) if "\n" not in note]


def _show_warning(message: Warning | str, *rest: Any) -> None:
    typer.echo(f"warning: {message}", err=True)
