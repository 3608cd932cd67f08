"""Standard output of commands: write errors have its name, also for help and version."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from hybridlm.files.atomic import naming

NAME = "standard output"


class _Named(io.FileIO):
    """A descriptor that stays open and has a name in write errors."""

    def __init__(self, descriptor: int):
        super().__init__(descriptor, "wb", closefd=False)

    def write(self, content, /) -> int | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        with naming(Path(NAME)):
            return super().write(content)


@contextmanager
def standard_output() -> Iterator[None]:
    """Name standard output in write errors; report unreported errors.

    Without standard output (`>&-`), output is dropped.
    """
    stream = sys.stdout
    if stream is None:
        sys.stdout = open(os.devnull, "w")
    elif isinstance(stream, io.TextIOWrapper):
        stream.flush()
        raw = _Named(stream.fileno())
        unbuffered = isinstance(stream.buffer, io.FileIO)  # with `python -u`
        sys.stdout = io.TextIOWrapper(
            raw if unbuffered else io.BufferedWriter(raw),
            stream.encoding,
            stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if not concerns_standard_output(error):
            raise
        drop_rest()
        if isinstance(error, BrokenPipeError):
            raise SystemExit(141) from None
        typer.echo(f"error: {NAME}: {error.strerror}", err=True)
        raise SystemExit(1) from None
    finally:
        named, sys.stdout = sys.stdout, stream
        if named is not stream:
            named.close()  # nothing is buffered: it was flushed, or goes nowhere


def concerns_standard_output(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.filename == NAME


def drop_rest() -> None:
    """Discard buffered and later output: it would raise again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
