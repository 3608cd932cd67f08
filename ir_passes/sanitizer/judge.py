"""Comparison of tags with expectations, while a step is traced."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ir_passes.contract.statements import Statement
from ir_passes.host.row_ledger import Expected, ReservedOwner
from ir_passes.jaxpr.ir import JaxprEqn, source_of
from ir_passes.sanitizer.tags import (
    LABEL,
    SLOT,
    UNKNOWN,
    Ints,
    Tags,
    computed,
    constant_row,
    nobody,
    numpy_of,
    pools_of,
    rows_axis,
)
from ir_passes.sanitizer.verdict import CODES, FIELDS, Check, LabelFault, UntrackedFault, Verdict


@dataclass
class Judge:
    """Comparison of tags with expectations while tracing; keeps each lane's first fault.

    Attributes:
        expected: int32 [N, 4] each.
        paths: paths of the input pools, for messages.
        masked: pools that may hold stale contents when a lane begins.
        named: pool behind page tables -> mask of its rows in them; labels of these pools are not compared.
        packed: tokens of several lanes share an axis, and padding reads fill values.
        checks: check -> number, in program order.
        untracked: equations where a pool's labels are lost, in order.
        caller: source of the enclosing call, for equations without a source.
    """

    expected: Expected
    paths: dict[int, str]
    masked: frozenset[int]
    named: Mapping[int, Array] = field(default_factory=dict)
    packed: bool = False
    checks: dict[Check, int] = field(default_factory=dict)
    untracked: dict[Statement, None] = field(default_factory=dict)
    verdict: Verdict = field(init=False)
    caller: str = "unknown"
    # Earlier comparisons by id; the arrays are kept alive for their ids.
    _compared: dict[tuple[int, int, int], tuple] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.verdict = Verdict.clean(self.lanes)

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return self.expected.found.shape[0]

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

    def use(self, where: JaxprEqn | str, tags: Tags, reader: Ints | None = None, mask: Ints | None = None) -> Tags:
        """Compare the labels of rows that an equation computes with; return its result's tags."""
        if tags.pending:
            self.compare(where, tags, reader, mask)
        return computed(tags.lanes, tags.derived)

    def lose(self, eqn: JaxprEqn, tags: Sequence[Tags | None], fault: UntrackedFault) -> list[Tags | None]:
        """Record that a pool's labels are lost; return the results' tags."""
        names = " and ".join(self.paths[pool] for pool in pools_of(tags))
        one_row = any(tag is not None and tag.whole and rows_axis(tag) is None for tag in tags)
        fault = UntrackedFault.ONE_ROW if one_row else fault
        self.untracked.setdefault(fault.statement(f"{names}, {eqn.primitive.name} at {self.source_of(eqn)}"))
        return [None] * len(eqn.outvars)

    def compare(self, where: JaxprEqn | str, tags: Tags, reader: Ints | None = None, mask: Ints | None = None) -> None:
        """Check that rows have the label that their reader expects, or that its lane left.

        `reader` has the lanes of the values that the rows are combined with, or UNKNOWN, as the tags; `mask` selects.
        """
        if set(tags.pools) <= self.named.keys():
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
            jnp.where(new, 1 + number * CODES + facts[:, 0], self.verdict.code),
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
