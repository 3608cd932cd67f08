"""The error for an executable that the audit cannot read; each reader runs inside `hlo_errors`."""

from collections.abc import Iterator
from contextlib import contextmanager


class HloError(ValueError):
    """The executable lacks data that the audit reads; the message names the missing part."""


# fmt: off
UNEXPECTED = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError
)
# fmt: on
"""Errors that inconsistent references, shapes or numbers cause."""


@contextmanager
def hlo_errors(part: str) -> Iterator[None]:
    """Convert unexpected errors of a reader to HloError.

    Args:
        part: name of the part of the executable, for the message.

    Raises:
        HloError: the protobuf is damaged, or has other field numbers than `hlo_schema`.
    """
    try:
        yield
    except HloError:
        raise
    except UNEXPECTED as error:
        raise HloError(
            f"{part} cannot be read; is it damaged, or did its field numbers change? {type(error).__name__}: {error}"
        ) from error
