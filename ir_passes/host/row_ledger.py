"""Labels that each sequence's rows must have: the sanitizer's host side.

A label is (owner, position, layout, epoch): sequence, tokens in the state, layout, and step of the write. It follows
from the host's bookkeeping, so moved, lost, shared or stale rows disagree with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from jax import Array

from ir_passes.contract.statements import Statement
from ir_passes.host.slot_faults import SlotError, SlotFault
from ir_passes.host.slot_owner import frozen_copy


class ReservedOwner(IntEnum):
    """Negative owners and 0; sequences have positive numbers.

    Attributes:
        FRESH: zero state; new shadow labels are all zeros, like a new pool.
        COMPUTED: a computed value, never in shadow labels.
        OUTSIDE: read past the pool's end.
        MIXED: parts of several sequences, or written by several lanes.
        ANY: no expectation.
        NOBODY: of an idle lane.
    """

    FRESH = 0
    COMPUTED = -1
    OUTSIDE = -2
    MIXED = -3
    ANY = -4
    NOBODY = -5


class Label(NamedTuple):
    """Label of a row: owner, tokens in the state, layout, step of the write."""

    owner: int
    position: int = 0
    layout: int = 0
    epoch: int = 0

    def __str__(self) -> str:
        special = {int(owner): owner.name.lower() for owner in ReservedOwner}
        owner = special.get(self.owner, str(self.owner))
        return f"owner {owner}, position {self.position}, layout {self.layout}, epoch {self.epoch}"


class Expected(NamedTuple):
    """Labels of a step, by lane.

    Attributes:
        found: int32 [N, 4], of rows that a lane reads.
        left: int32 [N, 4], of rows that it computes.
    """

    found: np.ndarray | Array
    left: np.ndarray | Array


@dataclass(frozen=True)
class LaneWork:
    """Work of a lane in a step.

    Attributes:
        owner: positive number of the sequence, never reused.
        position: tokens in the state before the step; 0 begins from zero state.
        length: tokens of the step; 0 keeps the rows.
        layout: of rows that the step reads and writes.
    """

    owner: int
    position: int
    length: int
    layout: int = 0


class RowLedger:
    """Labels of all sequences with rows, and the number of the step."""

    def __init__(self) -> None:
        self.epoch = 0
        self._labels: dict[int, Label] = {}

    def expect(self, work: Sequence[LaneWork | None]) -> Expected:
        """Return the next step's labels for the work of each lane (None if idle).

        A lane of length 0 may find any label: its rows are moved unchanged.

        Raises:
            SlotError: an owner that is not positive, has two lanes, or continues without a label.
        """
        faults, lane_of = list[Statement](), dict[int, int]()
        for lane, lane_work in enumerate(work):
            if lane_work is None:
                continue
            if lane_work.owner <= 0:
                faults.append(
                    SlotFault.OWNER.fault(f"lane {lane}", f"expected a positive owner, got {lane_work.owner}")
                )
            if lane_of.setdefault(lane_work.owner, lane) != lane:
                where = f"lanes {lane_of[lane_work.owner]} and {lane}"
                faults.append(SlotFault.TWO_LANES.fault(where, f"both belong to owner {lane_work.owner}"))
            if lane_work.length > 0 and lane_work.position > 0 and lane_work.owner not in self._labels:
                message = (
                    f"owner {lane_work.owner} continues at position {lane_work.position} but was never at 0; "
                    "adopt the label of the snapshot or parent that its rows were copied from"
                )
                faults.append(SlotFault.NO_LABEL.fault(f"lane {lane}", message))
        if faults:
            raise SlotError(*faults)
        self.epoch += 1
        pairs = [self._expect(lane_work) for lane_work in work]
        found_labels, left_labels = (
            np.array([pair[side] for pair in pairs], np.int32).reshape(len(work), 4) for side in (0, 1)
        )
        return Expected(frozen_copy(found_labels), frozen_copy(left_labels))

    def _expect(self, lane_work: LaneWork | None) -> tuple[Label, Label]:
        idle, nobody = Label(ReservedOwner.ANY), Label(ReservedOwner.NOBODY, epoch=self.epoch)
        if lane_work is None:
            return idle, nobody
        label = self._labels.get(lane_work.owner, nobody)
        if lane_work.length == 0:
            return idle, label
        new_label = Label(lane_work.owner, lane_work.position + lane_work.length, lane_work.layout, self.epoch)
        self._labels[lane_work.owner] = new_label
        if lane_work.position == 0:
            return Label(ReservedOwner.FRESH), new_label
        return Label(label.owner, lane_work.position, lane_work.layout, label.epoch), new_label

    def label(self, owner: int) -> Label:
        """Return the label of a sequence's rows, for a snapshot or fork; raises SlotError."""
        if owner not in self._labels:
            message = "has no label; it has taken no step, or was forgotten"
            raise SlotError(SlotFault.NO_LABEL.fault(f"owner {owner}", message))
        return self._labels[owner]

    def adopt(self, owner: int, label: Label) -> None:
        """Give a sequence the label of rows copied to its rows."""
        self._labels[owner] = label

    def forget(self, owner: int) -> None:
        """Forget a sequence after it has released its rows."""
        self._labels.pop(owner, None)
