"""The error of an executable that the audit cannot read, and its place at the boundary of every reader."""

from collections.abc import Iterator
from contextlib import contextmanager


class HloError(ValueError):
    """The executable does not give out what the audit reads; says what is missing."""


# fmt: off
UNEXPECTED = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError
)
# fmt: on
"""Errors from references, shapes and numbers that do not fit together."""


@contextmanager
def hlo_errors(part: str) -> Iterator[None]:
    """Raise HloError for an unexpected error of a reader.

    Args:
        part: what is read, for the message.

    Raises:
        HloError: of a damaged protobuf, or one whose fields have other numbers than `hlo_schema` has.
    """
    try:
        yield
    except HloError:
        raise
    except UNEXPECTED as error:
        raise HloError(
            f"{part} cannot be read; is it damaged, or did its field numbers change? {type(error).__name__}: {error}"
        ) from error
