"""Sanitized steps with the labels of their rows and the ledger of their sequences."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax

from ir_passes import LaneContract
from ir_passes.host.row_ledger import Expected, LaneWork, RowLedger
from ir_passes.sanitizer.sanitize import sanitize

Turns = Sequence[tuple[int, ...] | None]
"""Owner, position, length and, if it is not 0, layout of each lane; None for a lane without a sequence."""
FAST = {"xla_backend_optimization_level": "0"}


class LabelledSteps:
    """A sanitized step, taken again and again.

    Attributes:
        run: the sanitized step, compiled by XLA or run operation by operation.
        labels: of the rows of each pool, int32 [rows, 4].
        ledger: of the sequences.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        args: tuple[Any, ...],
        contract: LaneContract,
        *,
        compiled: bool = False,
        masked: Collection[str] = (),
    ):
        self.sanitized, self.ledger = sanitize(step, args, contract, masked=masked), RowLedger()
        self.run = jax.jit(self.sanitized.step, compiler_options=FAST) if compiled else self.sanitized.step
        self.labels = self.sanitized.shadow_labels()

    def begin(self) -> None:
        """Take zeroed pools and no sequences."""
        self.labels, self.ledger = self.sanitized.shadow_labels(), RowLedger()

    def expect(self, turns: Turns) -> Expected:
        return self.ledger.expect([None if turn is None else LaneWork(*turn) for turn in turns])

    def take(self, args: tuple[Any, ...], turns: Turns) -> tuple[Any, ...]:
        """Take one step and return its results.

        Raises:
            SanitizerError: a lane's row has another label than the ledger's.
        """
        expected = self.expect(turns)
        *results, self.labels, verdict = self.run(*args, shadow_labels=self.labels, expected=expected)
        self.sanitized.require(verdict, expected)
        return tuple(results)
