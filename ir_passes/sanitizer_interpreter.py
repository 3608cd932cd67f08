"""Runs a traced step with tags beside its values.

Moves are repeated on the tags. Whatever computes with rows of a pool is a use: their labels are compared there, and
the result is marked as computed for its lane. A write carries the label of rows that were only moved, and the lane's
own stamp for everything computed. The values are evaluated by the equations as they are.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ir_passes import ir, sanitizer_loops, sanitizer_pools
from ir_passes.row_ledger import Owner
from ir_passes.sanitizer_tags import (
    MOVES,
    SLOT,
    UNKNOWN,
    Tags,
    assemble,
    common,
    common_along,
    computed,
    concatenate,
    constant,
    keeps_row_layout,
    move,
    ranked,
)
from ir_passes.sanitizer_verdict import Judge

# Entry i of the result depends on entry i of each operand; scalars go with every entry.
ELEMENTWISE = frozenset(
    "abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp cos cosh digamma "
    "div eq erf erf_inv erfc exp exp2 expm1 floor ge gt integer_pow is_finite le lgamma log log1p logistic lt max min "
    "mul ne neg nextafter not or population_count pow rem round rsqrt select_n shift_left shift_right_arithmetic "
    "shift_right_logical sign sin sinh sqrt square sub tan tanh xor".split()
)
CUMULATIVE = frozenset({"cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum"})


class Interpreter:
    """One run over a step.

    Args:
        lanes: N.
        judge: compares labels.

    Attributes:
        untracked: equations that use a pool in a way that cannot be followed, in the order they were met.
    """

    def __init__(self, lanes: int, judge: Judge):
        self.lanes, self.judge = lanes, judge
        self.untracked: dict[str, None] = {}

    def run(
        self, program: ir.ClosedJaxpr, values: Sequence[Any], tags: Sequence[Tags | None]
    ) -> tuple[list[Any], list[Tags | None]]:
        """The results of a program on these operands, with their tags."""
        jaxpr = program.jaxpr
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, program.consts, strict=True))
        known |= dict(zip(jaxpr.invars, values, strict=True))
        tagged: dict[Any, Tags | None] = dict(zip(jaxpr.invars, tags, strict=True))

        def read(atom: ir.Atom) -> tuple[Any, Tags | None]:
            if isinstance(atom, ir.Literal):
                return atom.val, _zero(atom.val)
            return known[atom], tagged.get(atom)

        for eqn in jaxpr.eqns:
            operands = [read(atom) for atom in eqn.invars]
            outs, out_tags = self.equation(eqn, [value for value, _ in operands], [tag for _, tag in operands])
            for var, value, tag in zip(eqn.outvars, outs, out_tags, strict=True):
                if not isinstance(var, ir.DropVar):
                    known[var], tagged[var] = value, tag
        results = [read(atom) for atom in jaxpr.outvars]
        return [value for value, _ in results], [tag for _, tag in results]

    def equation(self, eqn: ir.JaxprEqn, values: list[Any], tags: list[Tags | None]) -> tuple[list[Any], list]:
        """The results of one equation, one for each of its variables, with their tags."""
        name = eqn.primitive.name
        if (body := ir.body_of(eqn)) is not None:
            # What jax's own functions expand to has no source; it is the caller's line that did it.
            outer, self.judge.caller = self.judge.caller, self.judge.source_of(eqn)
            results = self.run(body, values, tags)
            self.judge.caller = outer
            return results
        if name in sanitizer_loops.RULES and any(tag is not None for tag in tags):
            return sanitizer_loops.RULES[name](self, eqn, values, tags)
        out = iter(ir.eval_eqn(eqn, *values))
        outs = [None if isinstance(var, ir.DropVar) else next(out) for var in eqn.outvars]
        if all(tag is None for tag in tags):
            return outs, [None] * len(outs)
        return outs, self._tags(eqn, values, tags)

    def _tags(self, eqn: ir.JaxprEqn, values: list[Any], tags: list[Tags | None]) -> list[Tags | None]:
        name, first, rest = eqn.primitive.name, tags[0], tags[1:]
        if name in MOVES and first is not None:
            if first.pools and not keeps_row_layout(eqn, first):
                first = self.use(eqn, first)
            return [first.replace(array) for array in move(eqn, first.array)]
        if name == "optimization_barrier":
            return list(tags)
        if name == "concatenate":
            wholes = {tag is not None and tag.whole for tag in tags}
            if wholes == {True, False}:
                return self.lose(eqn, tags, "joins a pool with something that is none")
            return [Tags(concatenate(eqn, tags), _pools(tags), wholes == {True})]
        if name == "select_n" and len(tags) == 3 and any(tag is not None and tag.pools for tag in rest):
            return [self._select(eqn, values, tags)]
        if name in ("gather", "dynamic_slice") and first is not None and not any(tag and tag.pools for tag in rest):
            return [sanitizer_pools.read(self, eqn, values, tags)]
        if (name.startswith("scatter") or name == "dynamic_update_slice") and first is not None and first.whole:
            return [sanitizer_pools.write(self, eqn, values, tags)]
        if any(tag is not None and tag.whole for tag in tags):
            return self.lose(eqn, tags, "computes with a whole pool")
        return self._compute(eqn, tags)

    def _compute(self, eqn: ir.JaxprEqn, tags: list[Tags | None]) -> list[Tags | None]:
        name, rank = eqn.primitive.name, len(ir.shape_of(eqn.outvars[0]))
        if name in ELEMENTWISE:
            aligned = [None if tag is None else tag.replace(ranked(tag.array, rank)) for tag in tags]
            return [self._join(eqn, aligned)]
        if name == "dot_general":
            summed = [self._contract(eqn, side, tag) for side, tag in enumerate(tags)]
            return [self._join(eqn, [_dot_side(eqn, side, tag) for side, tag in enumerate(summed)])]
        used = [None if tag is None else self.use(eqn, tag) for tag in tags]
        first = used[0]
        axes = eqn.params.get("axes") if name.startswith(("reduce_", "arg")) else None
        if name in CUMULATIVE and first is not None:
            return [computed(common_along(first.lanes, (eqn.params["axis"],)))]
        if axes is not None and first is not None and len(used) == 1:
            lanes = common_along(first.lanes, axes)
            return [computed(jnp.squeeze(lanes, tuple(axes)) if lanes.ndim > rank else lanes)]
        return [None] * len(eqn.outvars)

    def use(self, where: ir.JaxprEqn | str, tags: Tags, reader: Array | None = None, mask: Array | None = None) -> Tags:
        """Compare the labels of what is computed with; what comes of it."""
        if tags.pending:
            unknown = jnp.full((1,) * tags.lanes.ndim, UNKNOWN, jnp.int32)
            looked = jnp.ones(unknown.shape, bool) if mask is None else mask
            reader = unknown if reader is None else reader
            self.judge.compare(where, tags.array, tags.pools, reader, looked)
        return computed(tags.lanes)

    def _join(self, eqn: ir.JaxprEqn, aligned: list[Tags | None]) -> Tags:
        known = [tag for tag in aligned if tag is not None]
        for tag in known:
            others = [other.lanes for other in known if other is not tag]
            if tag.pending:
                self.use(eqn, tag, common(others) if others else None)
        return computed(common(tag.lanes for tag in known))

    def _contract(self, eqn: ir.JaxprEqn, side: int, tags: Tags | None) -> Tags | None:
        """Tags of an operand of a dot that are the same along what is summed over."""
        axes = tuple(eqn.params["dimension_numbers"][0][side])
        if tags is None or all(tags.array.shape[axis] == 1 for axis in axes):
            return tags
        return computed(common_along(self.use(eqn, tags).lanes, axes))

    def _select(self, eqn: ir.JaxprEqn, values: list[Any], tags: list[Tags | None]) -> Tags | None:
        """A choice row by row moves rows; a choice within a row computes a new one from both."""
        rank = len(ir.shape_of(eqn.outvars[0]))
        chooser, cases = tags[0], tags[1:]
        whole = {case is not None and case.whole for case in cases} == {True}
        if not whole and any(case is not None and case.whole for case in cases):
            return self.lose(eqn, tags, "mixes a whole pool with something that is none")[0]
        arrays = [constant(Owner.COMPUTED, rank) if case is None else case.array for case in cases]
        shape = np.broadcast_shapes(*[array.shape[:-1] for array in arrays])
        predicate = jnp.reshape(values[0], (1,) * rank) if jnp.ndim(values[0]) == 0 else values[0]
        inner = tuple(axis for axis in range(rank) if shape[axis] == 1)
        every, some = jnp.all(predicate, axis=inner, keepdims=True), jnp.any(predicate, axis=inner, keepdims=True)
        mixed = some & ~every
        for case in cases:
            if case is not None and case.pending:
                self.use(eqn, case, mask=mixed)
        lanes = [array[..., 0] for array in arrays]
        agreed = common([*lanes, *([] if chooser is None else [ranked(chooser.array, rank)[..., 0]])])
        both = constant(Owner.MIXED if whole else Owner.COMPUTED, rank)
        chosen = jnp.where(every[..., None], arrays[1], jnp.where(mixed[..., None], both, arrays[0]))
        lane = jnp.where(chosen[..., 0] == UNKNOWN, agreed, chosen[..., 0])
        return Tags(assemble(lane, chosen[..., SLOT], chosen[..., 2:]), _pools(cases), whole)

    def lose(self, eqn: ir.JaxprEqn, tags: Sequence[Tags | None], why: str) -> list[Tags | None]:
        """Note that a pool cannot be followed through this equation."""
        names = " and ".join(self.judge.paths[pool] for pool in _pools(tags))
        self.untracked.setdefault(f"{names}: {eqn.primitive.name} at {self.judge.source_of(eqn)} {why}")
        return [None] * len(eqn.outvars)


def _zero(value: Any) -> Tags | None:
    """Zero is the state of a sequence that begins."""
    if np.size(value) == 1 and np.asarray(value).item() == 0:
        return Tags(constant(Owner.FRESH, np.ndim(value)))
    return None


def _pools(tags: Sequence[Tags | None]) -> tuple[int, ...]:
    return tuple(sorted({pool for tag in tags if tag is not None for pool in tag.pools}))


def _dot_side(eqn: ir.JaxprEqn, side: int, tags: Tags | None) -> Tags | None:
    """Tags of one operand of a dot, laid out as the result: batch, free of the left, free of the right."""
    if tags is None:
        return None
    contracting, batch = eqn.params["dimension_numbers"]
    rank, batches = tags.array.ndim - 1, len(batch[side])
    free = [axis for axis in range(rank) if axis not in (*contracting[side], *batch[side])]
    array = jnp.transpose(tags.array, (*batch[side], *free, *contracting[side], rank))
    sizes, columns = array.shape[: batches + len(free)], array.shape[-1]
    others = (1,) * (len(ir.shape_of(eqn.outvars[0])) - len(sizes))
    shape = (*sizes[:batches], *others, *sizes[batches:]) if side else (*sizes, *others)
    return tags.replace(array.reshape((*shape, columns)))
