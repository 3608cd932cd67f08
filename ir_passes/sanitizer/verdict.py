"""The sanitizer's verdict: each lane's first fault, as arrays and as a host error."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ir_passes.contract.statements import StatedError, Statement, StatementId
from ir_passes.host.row_ledger import Expected, Label
from ir_passes.sanitizer.tags import UNKNOWN

FIELDS = ("owner", "position", "layout", "epoch", "lane")
CODES = len(FIELDS)


class LabelFault(StatementId):
    """Faults of a lane; the first five are in order of label fields."""

    OWNER = "wrong-owner", "A lane works with the state of another sequence, or with none where it needs one."
    POSITION = "wrong-position", "A lane works with its sequence's state of another position."
    LAYOUT = "wrong-layout", "A lane reads a row in another layout than it was written in."
    EPOCH = "wrong-epoch", "A lane works with an older copy of its sequence's state."
    LANE = "wrong-lane", "What belongs to one lane meets what belongs to another."
    NOT_DISJOINT = "not-disjoint", "A row is in two slot maps that are declared disjoint."
    NULL_ROW = "null-row", "A lane is on the null row in one slot map and not in another."
    PACKED = "packed", "cu_seqlens or segment ids lay packed tokens out wrongly."
    PAGE = "page", "A lane writes a page that is not its own alone, or the null page."


class UntrackedFault(StatementId):
    """Reasons why a pool's labels cannot be followed."""

    WHOLE = "whole-pool", "It computes with a whole pool."
    MIXED = "mixed", "It mixes a pool with something that is none."
    DEVICES = (
        "devices",
        "It takes a pool to several devices, each of which has labels of its own: gather the lanes' rows before it and "
        "scatter them after it, or sanitize the step without the mesh.",
    )
    OPAQUE = "opaque", "It hands a pool to an operation that is not looked into: hand it the lanes' rows."
    LOOP = "loop", "It does not return the pool where it took it."
    SCAN = "scan", "It scans over the rows of a pool."
    READ = "read", "It reads rows whose numbers are no lane's slot."
    WRITE = "write", "It writes rows whose numbers are no lane's slot."
    ONE_ROW = (
        "one-row",
        "A pool of one row does not show which of its axes is that of the rows; give it two rows, or no slot map.",
    )
    RESULT = "whole-result", "It is a whole pool that the contract does not name."
    SUCCESSOR = "no-writes", "It is no chain of writes to the pool that it succeeds."
    PARTS = (
        "parts-of-rows",
        "It was written in parts of rows, which have one label each: write whole rows, without merging dimensions.",
    )


class Verdict(NamedTuple):
    """The first fault of each lane.

    Attributes:
        code: int32 [N], 0 for none, else 1 + 5 * check + field; checks count from 0 in program order.
        slot: int32 [N], row, or -1 if unknown.
        found: int32 [N, 4], actual label.
    """

    code: Array
    slot: Array
    found: Array

    @staticmethod
    def clean(lanes: int) -> "Verdict":
        nothing = jnp.zeros(lanes, jnp.int32)
        return Verdict(nothing, nothing - 1, jnp.zeros((lanes, 4), jnp.int32))


@dataclass(frozen=True)
class Check:
    """A comparison of labels in a step.

    Attributes:
        what: action, as "mul reads argument 1".
        source: "file:line".
        fault: None for the fault of the first differing label field.
    """

    what: str
    source: str
    fault: LabelFault | None = None


@dataclass(frozen=True, order=True)
class LaneFault(Statement):
    """The first fault of a lane; `id` is one of `LabelFault`.

    Attributes:
        row: None if unknown.
        source: "file:line"; "" if the operands themselves are wrong.
    """

    lane: int
    row: int | None
    expected: Label
    found: Label
    source: str


class SanitizerError(StatedError, RuntimeError):
    """Lanes worked with other lanes' rows; a `LaneFault` for each."""

    @property
    def lanes(self) -> tuple[int, ...]:
        """Lanes with a fault."""
        return tuple(fault.lane for fault in self.faults if isinstance(fault, LaneFault))


def explain(verdict: Verdict, expected: Expected, checks: tuple[Check, ...]) -> SanitizerError | None:
    """Wait for the step; return the error of a verdict, or None."""
    codes, slots, labels_found = (np.asarray(part) for part in verdict)
    wanted = np.asarray(expected.found)
    faults: list[LaneFault] = []
    for lane in np.flatnonzero(codes):
        number, kind = divmod(int(codes[lane]) - 1, CODES)
        check, slot = checks[number], int(slots[lane])
        got, want = (Label(*(int(value) for value in label)) for label in (labels_found[lane], wanted[lane]))
        row, id = None if slot == UNKNOWN else slot, check.fault or tuple(LabelFault)[kind]
        about = f"lane {lane}, {'row unknown' if row is None else f'row {row}'}"
        source = f" ({check.source})" if check.source else ""
        message = f"wrong {FIELDS[kind]} where {check.what}{source}: expected {want}; found {got}"
        faults.append(LaneFault(id.value, about, message, int(lane), row, want, got, check.source))
    advice = "stop these lanes: their state is not theirs; compare the slot map with the work given to the ledger"
    return SanitizerError(*faults, advice=advice) if faults else None
