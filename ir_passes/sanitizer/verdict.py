"""The sanitizer's verdict: each lane's first fault, as arrays and as a host error."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ir_passes.contract.statements import StatedError, Statement, StatementId
from ir_passes.host.row_ledger import Expected, Label, ReservedOwner
from ir_passes.jaxpr.ir import JaxprEqn, source_of
from ir_passes.sanitizer.tags import LABEL, SLOT, UNKNOWN, Ints, Tags, constant_row, nobody, numpy_of

FIELDS = ("owner", "position", "layout", "epoch", "lane")
_CODES = len(FIELDS)


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


@dataclass
class Judge:
    """Comparison of tags with expectations while tracing; keeps each lane's first fault.

    Attributes:
        expected: int32 [N, 4] each.
        paths: paths of the input pools, for messages.
        masked: pools that may hold stale contents when a lane begins.
        paged: pools behind page tables; their labels are not compared.
        packed: tokens of several lanes share an axis, and padding reads fill values.
        checks: check -> number, in program order.
        caller: source of the enclosing call, for equations without a source.
    """

    expected: Expected
    paths: dict[int, str]
    masked: frozenset[int]
    paged: frozenset[int] = frozenset()
    packed: bool = False
    checks: dict[Check, int] = field(default_factory=dict)
    verdict: Verdict = field(init=False)
    caller: str = "unknown"
    # Earlier comparisons by id; the arrays are kept alive for their ids.
    _compared: dict[tuple[int, int, int], tuple] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.verdict = Verdict.clean(self.expected.found.shape[0])

    def source_of(self, eqn: JaxprEqn) -> str:
        source = source_of(eqn)
        return self.caller if source == "unknown" else source

    def left(self, lanes: Ints) -> Ints:
        """Return the stamps of lanes, [..., 4]; MIXED for an unknown lane."""
        stamps = _of(self.expected.left, lanes)
        if isinstance(lanes, np.ndarray) and not (lanes == UNKNOWN).any():
            return stamps
        return jnp.where(
            (lanes == UNKNOWN)[..., None], constant_row(ReservedOwner.MIXED, lanes.ndim)[..., LABEL:], stamps
        )

    def compare(self, where: JaxprEqn | str, tags: Tags, reader: Ints | None = None, mask: Ints | None = None) -> None:
        """Check that rows have the label that their reader expects, or that its lane left.

        Args:
            reader: lanes of the values that the rows are combined with, or UNKNOWN; broadcast with the tags.
            mask: entries to compare.
        """
        if set(tags.pools) <= self.paged:
            return
        row_lanes, labels, slots = tags.lanes, tags.some_rows[..., LABEL:], tags.some_rows[..., SLOT]
        if reader is None or _same(reader, row_lanes):
            if (id(row_lanes), id(tags.rows), id(mask)) in self._compared:
                return
            self._compared[id(row_lanes), id(tags.rows), id(mask)] = row_lanes, tags.rows, mask
            reader = nobody(row_lanes.ndim)
        xp = numpy_of(row_lanes, reader)
        lanes = xp.where(reader == UNKNOWN, row_lanes, reader)
        expected, stamped = _of(self.expected.found, lanes), _of(self.expected.left, lanes)
        wanted, owner = expected[..., 0], labels[..., 0]
        excused = (owner == ReservedOwner.COMPUTED) | (wanted == ReservedOwner.ANY)
        if self.packed:
            excused |= owner == ReservedOwner.OUTSIDE
        if set(tags.pools) <= self.masked:
            excused |= wanted == ReservedOwner.FRESH
        differs = labels != expected
        wrong = jnp.any(differs, axis=-1) & jnp.any(labels != stamped, axis=-1)
        kind = jnp.argmax(differs, axis=-1).astype(jnp.int32)
        bad = wrong & ~excused
        lost = lanes == UNKNOWN
        if not isinstance(lost, np.ndarray) or lost.any():
            bad |= lost & (owner != ReservedOwner.COMPUTED)
            kind = jnp.where(lost, FIELDS.index("lane"), kind)
        if mask is not None:
            bad &= mask
        names = " and ".join(self.paths[pool] for pool in tags.pools)
        self.record(where, f"reads {names}", bad, lanes, kind, slots, labels)

    def compare_lanes(
        self, where: JaxprEqn | str, action: str, high: Ints, low: Ints, slots: Ints | None = None
    ) -> None:
        """Check that lanes do not meet; two different lanes are a fault of both."""
        differing = (high != UNKNOWN) & (high != low)
        if isinstance(differing, np.ndarray) and not differing.any():
            return
        slots = nobody(differing.ndim) if slots is None else slots
        for lanes in (high, low):
            live = _of(self.expected.found, lanes)[..., 0] != ReservedOwner.ANY
            self.record(where, action, live & differing, lanes, "lane", slots, ReservedOwner.COMPUTED)

    def record(
        self,
        where: JaxprEqn | str,
        action: str,
        bad: Array,
        lanes: Ints,
        kind: Ints | str,
        slots: Ints,
        labels: Ints | ReservedOwner,
        fault: LabelFault | None = None,
    ) -> None:
        """Record the first fault of each lane; lane 0 gets faults of unknown lanes.

        Args:
            kind: number of the label field, or its name for all entries.
            labels: [..., 4], or an owner for all entries.
        """
        if isinstance(kind, str):
            kind = np.full((1,) * bad.ndim, FIELDS.index(kind), np.int32)
        if isinstance(labels, ReservedOwner):
            labels = constant_row(labels, bad.ndim)[..., LABEL:]
        name, source = (where, "") if isinstance(where, str) else (where.primitive.name, self.source_of(where))
        number = self.checks.setdefault(Check(f"{name} {action}", source, fault), len(self.checks))
        total = self.verdict.code.shape[0]
        shape = np.broadcast_shapes(bad.shape, kind.shape, slots.shape)  # values of unknown lanes go to rows of several
        bad = jnp.broadcast_to(bad, shape)
        if bad.size == 0:
            return
        facts = [kind[..., None], slots[..., None], labels]
        facts = jnp.concatenate([jnp.broadcast_to(fact, (*shape, fact.shape[-1])) for fact in facts], axis=-1)
        if isinstance(lanes, np.ndarray) and np.array_equal(lanes.reshape(-1), np.arange(total)):
            axis = int(np.argmax(np.array(lanes.shape) == total)) if total > 1 else 0
            order = (axis, *(i for i in range(bad.ndim) if i != axis), bad.ndim) if bad.ndim else (0,)
            bad = jnp.transpose(bad, order[:-1]).reshape((total, -1))
            facts = jnp.transpose(facts, order).reshape((total, -1, facts.shape[-1]))
            if bad.shape[1] > 1:
                facts = jnp.take_along_axis(facts, jnp.argmax(bad, axis=1)[:, None, None], axis=1, mode="clip")
            new, facts = jnp.any(bad, axis=1), facts[:, 0]
        else:
            bad, count = bad.reshape(-1), bad.size
            place = jnp.where(bad, jnp.maximum(jnp.broadcast_to(lanes, shape).reshape(-1), 0), total)
            first = jnp.full(total, count, jnp.int32).at[place].min(jnp.arange(count, dtype=jnp.int32), mode="drop")
            facts = facts.reshape((count, -1)).at[first].get(mode="clip", wrap_negative_indices=False)
            new = first < count
        new &= self.verdict.code == 0
        self.verdict = Verdict(
            jnp.where(new, 1 + number * _CODES + facts[:, 0], self.verdict.code),
            jnp.where(new, facts[:, 1], self.verdict.slot),
            jnp.where(new[:, None], facts[:, 2:], self.verdict.found),
        )


def _same(array: Ints, other: Ints) -> bool:
    if isinstance(array, np.ndarray) and isinstance(other, np.ndarray):
        return array.shape == other.shape and np.array_equal(array, other)
    return array is other


def _of(rows: Any, lanes: Ints) -> Array:
    """Return each lane's row of an array [N, 4]."""
    rows = jnp.asarray(rows)
    if isinstance(lanes, np.ndarray) and np.array_equal(lanes.reshape(-1), np.arange(rows.shape[0])):
        return rows.reshape((*lanes.shape, 4))
    return rows.at[np.maximum(lanes, 0) if isinstance(lanes, np.ndarray) else jnp.maximum(lanes, 0)].get(mode="clip")


def explain(verdict: Verdict, expected: Expected, checks: tuple[Check, ...]) -> SanitizerError | None:
    """Wait for the step; return the error of a verdict, or None."""
    codes, slots, labels_found = (np.asarray(part) for part in verdict)
    wanted = np.asarray(expected.found)
    faults: list[LaneFault] = []
    for lane in np.flatnonzero(codes):
        number, kind = divmod(int(codes[lane]) - 1, _CODES)
        check, slot = checks[number], int(slots[lane])
        got, want = (Label(*(int(value) for value in label)) for label in (labels_found[lane], wanted[lane]))
        row, id = None if slot == UNKNOWN else slot, check.fault or tuple(LabelFault)[kind]
        about = f"lane {lane}, {'row unknown' if row is None else f'row {row}'}"
        source = f" ({check.source})" if check.source else ""
        message = f"wrong {FIELDS[kind]} where {check.what}{source}: expected {want}; found {got}"
        faults.append(LaneFault(id.value, about, message, int(lane), row, want, got, check.source))
    advice = "stop these lanes: their state is not theirs; compare the slot map with the work given to the ledger"
    return SanitizerError(*faults, advice=advice) if faults else None
