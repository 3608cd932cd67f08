"""Error for an unreadable executable; readers run inside `hlo_errors`."""

from collections.abc import Iterator
from contextlib import contextmanager


class HloError(ValueError):
    """Missing data of an executable; the message names the part."""


# fmt: off
UNEXPECTED = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError
)
# fmt: on
"""Errors of inconsistent references, shapes or numbers."""


@contextmanager
def hlo_errors(part: str) -> Iterator[None]:
    """Convert unexpected errors of a reader to HloError with the name of the part."""
    try:
        yield
    except HloError:
        raise
    except UNEXPECTED as error:
        raise HloError(
            f"{part} cannot be read; is it damaged, or did its field numbers change? {type(error).__name__}: {error}"
        ) from error
