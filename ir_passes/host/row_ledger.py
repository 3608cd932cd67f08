"""The labels that the rows of every sequence must have: the host's side of the sanitizer.

A row's label is (owner, position, layout, epoch): whose state it holds, after how many tokens, in which layout, and
which step wrote it. The ledger follows the labels from the host's bookkeeping alone and never looks at a pool, so that
a row that was moved, lost, shared or left over disagrees with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from jax import Array

from ir_passes.contract.statements import StatedError, Statement, StatementId
from ir_passes.host.slot_owner import frozen_copy


class ReservedOwner(IntEnum):
    """Owners that are no sequence; those of sequences are positive.

    Attributes:
        FRESH: zero state, nobody's. New shadow labels are all zeros, as a new pool is.
        COMPUTED: no row of a pool but something computed; never in shadow labels.
        OUTSIDE: read past the end of the pool.
        MIXED: parts of one row that are not the same sequence's, or written by no one lane.
        ANY: in an expectation, no expectation.
        NOBODY: written for an idle lane.
    """

    FRESH = 0
    COMPUTED = -1
    OUTSIDE = -2
    MIXED = -3
    ANY = -4
    NOBODY = -5


class Label(NamedTuple):
    """The label of a row: the owner of its state, the tokens seen, the layout, and the step that wrote it."""

    owner: int
    position: int = 0
    layout: int = 0
    epoch: int = 0

    def __str__(self) -> str:
        special = {int(owner): owner.name.lower() for owner in ReservedOwner}
        owner = special.get(self.owner, str(self.owner))
        return f"owner {owner}, position {self.position}, layout {self.layout}, epoch {self.epoch}"


class Expected(NamedTuple):
    """The labels of one step, lane by lane.

    Attributes:
        found: int32 [N, 4], what a lane must find in the rows that it reads.
        left: int32 [N, 4], what the rows that it computes are stamped with.
    """

    found: np.ndarray | Array
    left: np.ndarray | Array


@dataclass(frozen=True)
class LaneWork:
    """The work of one lane in a step.

    Attributes:
        owner: number of the sequence, positive, never used again for another one.
        position: tokens that its state has seen before the step; a sequence at 0 begins from zero state.
        length: real tokens of the step; 0 keeps the rows.
        layout: number of the layout in which the step reads and writes the rows.
    """

    owner: int
    position: int
    length: int
    layout: int = 0


class LedgerFault(StatementId):
    """A contradiction about sequences: the value is its id, `sentence` says it in words. The list is closed."""

    OWNER = "owner", "The number of an owner is not positive."
    TWO_LANES = "two-lanes", "Two lanes belong to one owner."
    NO_LABEL = "no-label", "A sequence continues, or is copied, and no step has written its rows."


class LedgerError(StatedError, ValueError):
    """The host contradicts itself about its sequences: every fault, with its id of `LedgerFault`."""


class RowLedger:
    """Labels of all sequences that have a row, and the number of the step."""

    def __init__(self) -> None:
        self.epoch = 0
        self._labels: dict[int, Label] = {}

    def expect(self, work: Sequence[LaneWork | None]) -> Expected:
        """Return the expectations of the next step, for lanes in this order; None is an idle lane.

        A lane of length 0 may find anything, because nothing it computes is kept: its rows must be moved as they are.

        Raises:
            LedgerError: an owner is not positive or has two lanes, or continues without a label.
        """
        faults, seen = list[Statement](), dict[int, int]()
        for lane, one in enumerate(work):
            if one is None:
                continue
            if one.owner <= 0:
                faults.append(LedgerFault.OWNER.fault(f"lane {lane}", f"expected a positive owner, got {one.owner}"))
            if seen.setdefault(one.owner, lane) != lane:
                where = f"lanes {seen[one.owner]} and {lane}"
                faults.append(LedgerFault.TWO_LANES.fault(where, f"both belong to owner {one.owner}"))
            if one.length > 0 and one.position > 0 and one.owner not in self._labels:
                message = (
                    f"owner {one.owner} continues at position {one.position} but was never at 0; "
                    "adopt the label of the snapshot or parent that its rows were copied from"
                )
                faults.append(LedgerFault.NO_LABEL.fault(f"lane {lane}", message))
        if faults:
            raise LedgerError(*faults)
        self.epoch += 1
        pairs = [self._expect(one) for one in work]
        found, left = (np.array([pair[side] for pair in pairs], np.int32).reshape(len(work), 4) for side in (0, 1))
        return Expected(frozen_copy(found), frozen_copy(left))

    def _expect(self, one: LaneWork | None) -> tuple[Label, Label]:
        idle, nobody = Label(ReservedOwner.ANY), Label(ReservedOwner.NOBODY, epoch=self.epoch)
        if one is None:
            return idle, nobody
        before = self._labels.get(one.owner, nobody)
        if one.length == 0:
            return idle, before
        after = Label(one.owner, one.position + one.length, one.layout, self.epoch)
        self._labels[one.owner] = after
        if one.position == 0:
            return Label(ReservedOwner.FRESH), after
        return Label(before.owner, one.position, one.layout, before.epoch), after

    def label(self, owner: int) -> Label:
        """Return the label of a sequence's rows, for a snapshot or a fork of it.

        Raises:
            LedgerError: the owner has none.
        """
        if owner not in self._labels:
            message = "has no label; it has taken no step, or was forgotten"
            raise LedgerError(LedgerFault.NO_LABEL.fault(f"owner {owner}", message))
        return self._labels[owner]

    def adopt(self, owner: int, label: Label) -> None:
        """Give a sequence the label of the rows that its own are now a copy of."""
        self._labels[owner] = label

    def forget(self, owner: int) -> None:
        """Forget a sequence, which gives up its rows."""
        self._labels.pop(owner, None)
