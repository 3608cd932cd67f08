"""Interpreter of the sanitizer: evaluates a traced step's unchanged equations, with tags.

Moves are repeated on tags. A computation with pool rows compares their labels, and its result belongs to its lane. A
write stores the labels of moved rows, and the lane's stamp for computed values.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ir_passes.contract.entries import Opaque
from ir_passes.contract.opaque_names import declared_name
from ir_passes.host.row_ledger import ReservedOwner
from ir_passes.jaxpr import ir, rewriting
from ir_passes.jaxpr.dtypes import to_numpy
from ir_passes.jaxpr.primitives import CUMULATIVE, ELEMENTWISE, IDENTITIES, MOVES, OPAQUE, PARTS, REDUCTIONS, WRITES
from ir_passes.sanitizer import loops, pools
from ir_passes.sanitizer.judge import Judge
from ir_passes.sanitizer.tags import (
    UNKNOWN,
    Ints,
    Tags,
    common,
    common_along,
    computed,
    concatenate,
    constant_row,
    joins_places,
    keeps_row_layout,
    move,
    nobody,
    numpy_of,
    pools_of,
    range_along,
    range_of,
    ranked,
    zero,
)
from ir_passes.sanitizer.verdict import UntrackedFault

_NOT_ENTERED = {"shard_map": UntrackedFault.DEVICES, **dict.fromkeys(OPAQUE, UntrackedFault.OPAQUE)}


class Interpreter:
    """A run of a step with tags."""

    def __init__(self, judge: Judge, opaque: Mapping[str, Opaque] | None = None):
        self.judge, self.opaque = judge, opaque or {}

    def run(
        self, program: ir.ClosedJaxpr, values: Sequence[Any], tags: Sequence[Tags | None]
    ) -> tuple[list[Any], list[Tags | None]]:
        def equation(eqn: ir.JaxprEqn, operands: list[tuple[Any, Tags | None]]) -> Iterable[tuple[Any, Tags | None]]:
            return zip(*self.equation(eqn, [value for value, _ in operands], [tag for _, tag in operands]), strict=True)

        consts, args = ((const, None) for const in program.consts), zip(values, tags, strict=True)
        results = ir.run(program.jaxpr, consts, args, equation, lambda value: (value, _literal(value)))
        return [value for value, _ in results], [tag for _, tag in results]

    def equation(self, eqn: ir.JaxprEqn, values: list[Any], tags: list[Tags | None]) -> tuple[list[Any], list]:
        name = eqn.primitive.name
        if (body := ir.body_of(eqn)) is not None:
            # Equations of JAX's own functions have no source; they take the caller's line.
            outer, self.judge.caller = self.judge.caller, self.judge.source_of(eqn)
            results = self.run(body, values, tags)
            self.judge.caller = outer
            return results
        if name in loops.RULES and any(tag is not None for tag in tags) and not _batched_loop(eqn):
            return loops.RULES[name](self.judge, self.run, eqn, values, tags)
        outs = rewriting.eval_eqn(eqn, *values)
        if all(tag is None for tag in tags):
            return outs, [None] * len(outs)
        return outs, self._tags(eqn, values, tags)

    def _tags(self, eqn: ir.JaxprEqn, values: list[Any], tags: list[Tags | None]) -> list[Tags | None]:
        name, first, rest = eqn.primitive.name, tags[0], tags[1:]
        if name in IDENTITIES:
            return list(tags)
        if name in MOVES | PARTS and first is not None and not joins_places(eqn, first):
            if first.pools and not keeps_row_layout(eqn, first):
                first = self.judge.use(eqn, first)
            return list(move(eqn, first))
        if name in ("concatenate", "stack"):
            wholes = {tag is not None and tag.whole for tag in tags}
            if wholes == {True, False}:
                return self.judge.lose(eqn, tags, UntrackedFault.MIXED)
            return [concatenate(eqn, tags)]
        if name == "select_n" and len(tags) == 3 and any(tag is not None and tag.pools for tag in rest):
            return [self._select(eqn, values, tags)]
        if name in ("gather", "dynamic_slice") and first is not None and not any(tag and tag.pools for tag in rest):
            return [pools.read(self.judge, eqn, values, tags)]
        if name in WRITES and first is not None and first.whole:
            return [pools.write(self.judge, eqn, values, tags)]
        if any(tag is not None and tag.whole for tag in tags):
            declared = declared_name(eqn, self.opaque) if name in OPAQUE else None
            results = None if declared is None else pools.call(self.judge, eqn, self.opaque[declared], values, tags)
            if results is not None:
                return results
            return self.judge.lose(eqn, tags, _NOT_ENTERED.get(name, UntrackedFault.WHOLE))
        return self._compute(eqn, values, tags)

    def _compute(self, eqn: ir.JaxprEqn, values: list[Any], tags: list[Tags | None]) -> list[Tags | None]:
        if not eqn.outvars:
            return []
        name, rank = eqn.primitive.name, len(ir.shape_of(eqn.outvars[0]))
        if name in ELEMENTWISE:
            aligned = [None if tag is None else ranked(tag, rank) for tag in tags]
            # Sorts and counts of rows combine integers of several lanes; states of several lanes never meet.
            joined = self._join(eqn, aligned, separate=jnp.issubdtype(jnp.result_type(values[-1]), jnp.inexact))
            return [joined] * len(eqn.outvars)
        if name == "dot_general":
            summed = [self._contract(eqn, side, tag, values[side]) for side, tag in enumerate(tags)]
            return [self._join(eqn, [_dot_side(eqn, side, tag) for side, tag in enumerate(summed)], separate=False)]
        mask = self._reading(eqn, values) if name in OPAQUE else None
        used = [
            None if tag is None else self.judge.use(eqn, tag, mask=None if mask is None else tag.of_lanes(mask))
            for tag in tags
        ]
        first = used[0]
        axes = eqn.params["axes"] if name in REDUCTIONS else None
        if name == "bitcast_convert_type":
            axes = (rank,)
        if name in CUMULATIVE and first is not None:
            return [computed(self._common(eqn, first, (eqn.params["axis"],), values[0]), first.derived)]
        if axes is not None and first is not None and len(used) == 1:
            return [computed(self._common(eqn, first, axes, values[0]).squeeze(tuple(axes)), first.derived)]
        return [None] * len(eqn.outvars)

    def _reading(self, eqn: ir.JaxprEqn, values: list[Any]) -> Ints | None:
        """Return a mask [N] of lanes that a declared operation reads; None for all."""
        declared = declared_name(eqn, self.opaque)
        fresh = None if declared is None else self.opaque[declared].fresh
        return None if fresh is None else ~values[fresh]

    def _join(self, eqn: ir.JaxprEqn, aligned: list[Tags | None], separate: bool) -> Tags:
        """Return the tags of an elementwise result; if `separate`, lanes must not meet."""
        present = [tag for tag in aligned if tag is not None]
        for tag in present:
            other_lanes = [tag2.lanes for tag2 in present if tag2 is not tag]
            self.judge.use(eqn, tag, common(other_lanes) if other_lanes else None)
        high, low = range_of(tag.lanes for tag in present)
        derived = any(tag.derived for tag in present)
        if separate and derived and not any(tag.pending for tag in present):
            self.judge.compare_lanes(eqn, "mixes two lanes", high, low)
        return computed(numpy_of(high, low).where(high == low, high, np.int32(UNKNOWN)), derived)

    def _contract(self, eqn: ir.JaxprEqn, side: int, tags: Tags | None, value: Any) -> Tags | None:
        axes = tuple(eqn.params["dimension_numbers"][0][side])
        if tags is None or all(tags.shape[axis] == 1 for axis in axes):
            return tags
        return computed(self._common(eqn, self.judge.use(eqn, tags), axes, value), tags.derived)

    def _common(self, eqn: ir.JaxprEqn, tags: Tags, axes: Sequence[int], value: Any) -> Ints:
        """Return the lanes of a sum over axes; states of several lanes do not meet."""
        # masks keep packed tokens of other lanes out of a sum
        if tags.derived and not self.judge.packed and jnp.issubdtype(jnp.result_type(value), jnp.inexact):
            self.judge.compare_lanes(eqn, "mixes two lanes", *range_along(tags.lanes, axes))
        return common_along(tags.lanes, axes)

    def _select(self, eqn: ir.JaxprEqn, values: list[Any], tags: list[Tags | None]) -> Tags | None:
        """Return the tags of a select: whole rows move, mixed rows are computed."""
        rank = len(ir.shape_of(eqn.outvars[0]))
        chooser = None if tags[0] is None else ranked(tags[0], rank)
        cases = [computed(nobody(rank)) if case is None else case for case in tags[1:]]
        versions = all(case.whole for case in cases)
        if not versions and any(case.whole for case in cases):
            return self.judge.lose(eqn, tags, UntrackedFault.MIXED)[0]
        shape = np.broadcast_shapes(*[case.shape for case in cases])
        predicate = jnp.reshape(values[0], (1,) * rank) if jnp.ndim(values[0]) == 0 else values[0]
        inner = tuple(axis for axis in range(rank) if shape[axis] == 1)
        every, some = jnp.all(predicate, axis=inner, keepdims=True), jnp.any(predicate, axis=inner, keepdims=True)
        mixed = some & ~every
        for case in cases:
            self.judge.use(eqn, case, mask=mixed)
        high, low = range_of(case.lanes for case in cases)
        agreed = common([high, low, *([] if chooser is None else [chooser.lanes])])
        differing = (high != UNKNOWN) & (high != low)
        lanes = agreed
        if not isinstance(differing, np.ndarray) or differing.any():
            chosen = jnp.where(every, cases[1].lanes, jnp.where(mixed, UNKNOWN, cases[0].lanes))
            lanes = jnp.where(chosen == UNKNOWN, agreed, chosen)
        owner_row = constant_row(ReservedOwner.MIXED if versions else ReservedOwner.COMPUTED, rank)
        keep, mix = every[..., None], mixed[..., None]
        rows = jnp.where(keep, cases[1].some_rows, jnp.where(mix, owner_row, cases[0].some_rows))
        return Tags(lanes, rows, pools_of(cases), versions, any(case.derived for case in cases))


def _batched_loop(eqn: ir.JaxprEqn) -> bool:
    """True for a loop with an end per batch entry (`jax.vmap`); it is not interpreted."""
    return eqn.primitive.name == "while" and ir.shape_of(ir.closed(eqn.params["cond_jaxpr"]).jaxpr.outvars[0]) != ()


def _literal(value: Any) -> Tags | None:
    """Return the tags of a literal: zero begins a sequence."""
    return zero(np.ndim(value)) if np.size(value) == 1 and not to_numpy(value).any() else None


def _dot_side(eqn: ir.JaxprEqn, side: int, tags: Tags | None) -> Tags | None:
    """Return a dot operand's tags as in the result: batch, left and right free axes."""
    if tags is None:
        return None
    contracting, batch = eqn.params["dimension_numbers"]
    rank, batches = tags.lanes.ndim, len(batch[side])
    free = [axis for axis in range(rank) if axis not in (*contracting[side], *batch[side])]
    other_axes = (1,) * (len(ir.shape_of(eqn.outvars[0])) - batches - len(free))

    def lay_out(array: Ints) -> Ints:
        array = array.transpose((*batch[side], *free, *contracting[side], rank))
        sizes, columns = array.shape[: batches + len(free)], array.shape[-1]
        return array.reshape(
            (*sizes[:batches], *other_axes, *sizes[batches:], columns) if side else (*sizes, *other_axes, columns)
        )

    return tags.map(lay_out)
