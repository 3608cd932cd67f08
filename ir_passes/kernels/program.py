"""A Pallas kernel as a plain program: loops over its grid around its body.

The program has the operands and results of the `pallas_call`, and says what the kernel may do on the machine that it
is for, not what interpret mode does:

* Memory that nobody has written holds anything: scratch, the blocks of results, what a masked load leaves out.
* An index that picks a block, or a place in one, has to be in bounds; otherwise the kernel reaches foreign memory.
* Steps of a grid axis run one after the other on a TPU, unless `dimension_semantics` says "parallel": scratch, and a
  block that stays in its place, carry over. Everywhere else they run side by side. Then scratch is new in each, two
  steps may not write one block, and of a result that all of them write to nothing that another has written is known.
* A result that is aliased to an operand is that operand's memory. Triton's kernels work in it, and a TPU's copies where
  a result stays in the device's memory; elsewhere a block is put together in other memory and written as a whole, what
  the kernel leaves out too.
* A grid axis may have a computed length n. Its steps are then run up to the number M of blocks of an array, and a step
  that is not below n changes nothing. This is what the kernel does if 0 <= n <= M, which has to be shown. A length that
  differs between lanes makes every memory depend on them.
* On a TPU the last block along a dimension may reach beyond the array. What it loads there is foreign memory
  (`memory.padded`), and what it stores there is dropped.
* A kernel may take an array whole, and each of its steps may work on a part of its own (`own_blocks`).

More than 300 lines: the loops are one recursion.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ir_passes.jaxpr import ir
from ir_passes.kernels.blocks import Blocks
from ir_passes.kernels.body import Ref, either, memory_for, memory_of, run_body
from ir_passes.kernels.copies import Copies
from ir_passes.kernels.memory import MAX_UNROLLED, UnreadableKernel, padded, uninitialized, within
from ir_passes.kernels.own_blocks import SCRATCH, NotItsOwn, guesses, own_part


def kernel_program(eqn: ir.JaxprEqn) -> Callable[..., list[Any]]:
    """Return a `pallas_call` as a function of its operands that is made of plain operations.

    Raises:
        UnreadableKernel: it does what has no plain form, also when the function is traced; says what, and where.
    """
    kernel = _Kernel.of(eqn)
    return lambda *operands: _with_guesses(kernel, operands)


def _with_guesses(kernel: "_Kernel", operands: Sequence[Any]) -> list[Any]:
    """Run a kernel; an array that it takes whole is cut if each step works on a part of its own.

    Scratch is new in each step unless a step reads what another has left.
    """
    aliased = {operand: result for result, operand in kernel.aliases.items()}
    arrays = [("result", k) for k in range(len(kernel.outputs))]
    arrays += [("operand", k) for k in range(len(kernel.inputs)) if k not in aliased]
    left: dict[Any, list[Any]] = {one: kernel.guesses(*one) for one in arrays}
    left[SCRATCH] = [None] if any(one[1] is not None for one in kernel.scratch) else []
    while True:
        cut = replace(kernel, own_scratch=bool(left[SCRATCH]))
        for one in arrays:
            cut = cut.cut(*one, left[one][0]) if left[one] else cut
        try:
            return cut.run(*operands)
        except NotItsOwn as error:
            del left[error.array][0]


@dataclass
class _State:
    """Memory that a step hands on.

    Attributes:
        results: arrays, or the parts of them that the steps inside are about; once the block is picked, its memory.
        scratch: memory that outlives a step.
    """

    results: list[Any]
    scratch: list[Ref]


@dataclass(frozen=True)
class _Kernel:
    """A kernel.

    Attributes:
        jaxpr: its body, of references to prefetched scalars, operands, results and scratch.
        grid: lengths of its axes.
        seen: the axes that the body knows of; `jax.vmap` adds others.
        sequential: for each of them whether its steps run one after the other.
        in_place: whether it works in the memory of its results, not in blocks that are written as a whole.
        copies: whether the machine has copies that run beside a program: it is a TPU.
        scalars: number of prefetched scalars.
        inputs, outputs: how the other operands, and the results, are cut.
        aliases: result -> the one of `inputs` whose memory it takes.
        scratch: shapes and dtypes.
        own_scratch: whether each step writes what it reads of it.
        computed: the grid axes whose length is an operand, in the order of these operands, which come first; `grid` has
            the greatest number of their steps.
        lengths: of the grid axes, once the operands are known.
    """

    jaxpr: Any
    grid: tuple[int, ...]
    seen: tuple[int, ...]
    sequential: tuple[bool, ...]
    in_place: bool
    copies: bool
    scalars: int
    inputs: tuple[Blocks, ...]
    outputs: tuple[Blocks, ...]
    aliases: dict[int, int]
    scratch: tuple[tuple[tuple[int, ...], Any], ...]
    own_scratch: bool = False
    computed: tuple[int, ...] = ()
    lengths: tuple[Any, ...] = ()

    @classmethod
    def of(cls, eqn: ir.JaxprEqn) -> "_Kernel":
        params = eqn.params
        mapping = params["grid_mapping"]
        if params.get("mesh") is not None:
            raise UnreadableKernel("it runs on a mesh of cores")
        computed = tuple(axis for axis, size in enumerate(mapping.grid) if not isinstance(size, int))
        if len(computed) != mapping.num_dynamic_grid_bounds or (computed and mapping.vmapped_dims):
            raise UnreadableKernel(f"a grid whose size is computed: {mapping.grid}")
        grid = tuple(_most_steps(mapping, k) if k in computed else int(size) for k, size in enumerate(mapping.grid))
        scalars = mapping.num_index_operands
        seen = tuple(axis for axis in range(len(grid)) if axis not in mapping.vmapped_dims)
        machine = _machine(params["compiler_params"], len(grid), seen)
        cut = tuple(Blocks.of(blocks, grid, pads=machine[-1]) for blocks in mapping.block_mappings)
        inputs, outputs = cut[: mapping.num_inputs], cut[mapping.num_inputs :]
        aliases = {}
        for operand, result in dict(params["input_output_aliases"]).items():
            if operand < scalars:
                raise UnreadableKernel(f"result {result} takes the memory of operand {operand}, a prefetched scalar")
            if not inputs[operand - scalars].same_place(outputs[result]):
                raise UnreadableKernel(f"result {result} takes the memory of operand {operand} with other blocks")
            aliases[result] = operand - scalars
        scratch = tuple(memory_of(getattr(aval, "inner_aval", aval)) for aval in mapping.scratch_avals)
        return cls(params["jaxpr"], grid, seen, *machine, scalars, inputs, outputs, aliases, scratch, computed=computed)

    def guesses(self, kind: str, number: int) -> list[Blocks]:
        """Return ways to cut one array that its steps can be run with."""
        if kind == "operand":
            return guesses(self.inputs[number], self.grid, self.seen)
        # blocks that are written as a whole are put together by one step after the other
        axes = [axis for axis in self.seen if self._in_place(number) or self.sequential[axis]]
        found = []
        for one in guesses(self.outputs[number], self.grid, axes):
            try:
                self.cut(kind, number, one)._check_order()
            except UnreadableKernel:
                continue
            found.append(one)
        return found

    def cut(self, kind: str, number: int, blocks: Blocks) -> "_Kernel":
        """Return the kernel with one array cut in another way; what a result takes the memory of, too."""
        inputs, outputs = list(self.inputs), list(self.outputs)
        if kind == "operand":
            inputs[number] = blocks
        else:
            outputs[number] = blocks
            if number in self.aliases:
                inputs[self.aliases[number]] = blocks
        return replace(self, inputs=tuple(inputs), outputs=tuple(outputs))

    def _check_order(self) -> None:
        for k, blocks in enumerate(self.outputs):
            for axis in [axis for axis, size in enumerate(self.grid) if size > 1 and axis not in blocks.axes]:
                if axis < blocks.opened:
                    raise UnreadableKernel(f"result {k}: the steps of grid axis {axis} come back to blocks left before")
                if not self.sequential[axis] and not self._in_place(k):
                    raise UnreadableKernel(
                        f"result {k}: the {self.grid[axis]} steps of grid axis {axis} write one block, and nothing "
                        "says that they run one after the other: compiler_params=pltpu.CompilerParams()"
                    )

    def run(self, *operands: Any) -> list[Any]:
        """Run all steps.

        Raises:
            NotItsOwn: a step works on another part of an array than the one that was guessed.
        """
        self._check_order()
        bounds, operands = operands[: len(self.computed)], operands[len(self.computed) :]
        lengths: list[Any] = list(self.grid)
        for axis, bound in zip(self.computed, bounds, strict=True):
            lengths[axis] = within(bound, self.grid[axis] + 1)
        return replace(self, lengths=tuple(lengths))._run(list(operands[: self.scalars]), operands[self.scalars :])

    def _run(self, scalars: list[Any], operands: Sequence[Any]) -> list[Any]:
        arrays = [padded(array, blocks.shape) for array, blocks in zip(operands, self.inputs, strict=True)]
        results = [
            arrays[self.aliases[k]] if k in self.aliases else uninitialized(one.shape, one.dtype)
            for k, one in enumerate(self.outputs)
        ]
        # an operand whose memory a result takes is read there
        inputs = [None if k in self.aliases.values() else array for k, array in enumerate(arrays)]
        results = self._inside(-1, inputs, _State(results, self._fresh()), [], scalars).results
        return [
            array if blocks.shape == blocks.unpadded else lax.slice(array, [0] * array.ndim, blocks.unpadded)
            for array, blocks in zip(results, self.outputs, strict=True)
        ]

    def _fresh(self) -> list[Ref]:
        return [Ref.fresh(*one) for one in self.scratch if one[1] is not None]

    def _inside(self, axis: int, inputs: list[Any], state: _State, ids: list[Any], scalars: list[Any]) -> _State:
        """Run one step of the grid axes up to `axis`, whose numbers are `ids`: take blocks, go on, put them back."""
        parts = [
            array if array is None else _part(blocks, array, self._starts(blocks, axis, ids, scalars))
            for blocks, array in zip(self.inputs, inputs, strict=True)
        ]
        starts = [self._starts(blocks, axis, ids, scalars) for blocks in self.outputs]
        outer = [_part(blocks, *one) for blocks, *one in zip(self.outputs, state.results, starts, strict=True)]
        inner = list(outer)
        picked = [k for k, blocks in enumerate(self.outputs) if blocks.opened == axis]
        for k in picked:
            part = lax.squeeze(outer[k], self.outputs[k].squeezed)
            if k in self.aliases and not self._in_place(k):
                parts[self.aliases[k]] = outer[k]
            if k in self.aliases and self._in_place(k):
                inner[k] = Ref(part)
            else:
                like = part if k in self.aliases else None
                inner[k] = Ref.fresh(part.shape, part.dtype, known=not self._raced(k), like=like)
        steps = self._loop if axis + 1 < len(self.grid) else self._body
        after = steps(axis + 1, parts, _State(inner, state.scratch), ids, scalars)
        results = list(after.results)
        for k in picked:
            results[k] = lax.expand_dims(results[k].content(), self.outputs[k].squeezed)
        results = [_put(array, *one) for array, *one in zip(state.results, results, starts, strict=True)]
        return _State(results, after.scratch)

    def _in_place(self, result: int) -> bool:
        """Whether steps work in the memory of a result; on a TPU, where no block of it is brought to the core."""
        return self.in_place or self._far(result)

    def _far(self, result: int) -> bool:
        """Whether a result stays in the device's memory, which only copies reach."""
        return self.copies and self.outputs[result].far

    def _raced(self, result: int) -> bool:
        """Whether steps that run side by side write to one block."""
        axes = self.outputs[result].axes
        return any(n > 1 and k not in axes and not self.sequential[k] for k, n in enumerate(self.grid))

    def _loop(self, axis: int, inputs: list[Any], state: _State, ids: list[Any], scalars: list[Any]) -> _State:
        """Run the steps of one grid axis."""
        size = self.grid[axis]

        def step(index: Any, inputs: list[Any], state: _State) -> _State:
            after = run(index, inputs, state)
            if axis not in self.computed:
                return after
            runs = lax.lt(jnp.asarray(index, jnp.int32), lax.convert_element_type(self.lengths[axis], jnp.int32))
            results = [_chosen(runs, *pair) for pair in zip(after.results, state.results, strict=True)]
            return _State(results, [_chosen(runs, *pair) for pair in zip(after.scratch, state.scratch, strict=True)])

        def run(index: Any, inputs: list[Any], state: _State) -> _State:
            if self.sequential[axis] and not self.own_scratch:
                return self._inside(axis, inputs, state, [*ids, index], scalars)
            fresh = _State(state.results, self._fresh())
            return _State(self._inside(axis, inputs, fresh, [*ids, index], scalars).results, state.scratch)

        cut = {
            dim: blocks.components[dim].block
            for blocks in (*self.inputs, *self.outputs)
            if (dim := blocks.along(axis)) is not None
        }
        if size == 1 and not cut:
            return step(np.int32(0), inputs, state)
        # lanes are most often rows: which block of them a step has is known if it is written out
        if size <= MAX_UNROLLED and (cut.get(0, 1) > 1 or self._hands_on(axis)):
            return self._unrolled(axis, step, inputs, state)
        return self._scanned(axis, step, inputs, state)

    def _hands_on(self, axis: int) -> bool:
        """Whether a step finds what the one before has left, which a loop would not tell from what the first finds."""
        stays = any(axis > blocks.opened for blocks in self.outputs)
        innermost = max((k for k, size in enumerate(self.grid) if size > 1), default=-1) == axis
        handed = any(one[1] is not None for one in self.scratch) and not self.own_scratch
        return self.grid[axis] > 1 and self.sequential[axis] and (stays or (handed and innermost))

    def _unrolled(self, axis: int, step: Callable[..., _State], inputs: list[Any], state: _State) -> _State:
        size, made = self.grid[axis], []
        covered = [blocks.along(axis) for blocks in self.outputs]
        for k in range(size):
            parts = [
                _cut(array, blocks.along(axis), k, size) for array, blocks in zip(inputs, self.inputs, strict=True)
            ]
            own = [_cut(array, dim, k, size) for array, dim in zip(state.results, covered, strict=True)]
            after = step(np.int32(k), parts, _State(own, state.scratch))
            made.append(after.results)
            kept = [
                new if dim is None else old for old, new, dim in zip(state.results, after.results, covered, strict=True)
            ]
            state = _State(kept, after.scratch)
        whole = [
            state.results[k] if dim is None else lax.concatenate([one[k] for one in made], dim)
            for k, dim in enumerate(covered)
        ]
        return _State(whole, state.scratch)

    def _scanned(self, axis: int, step: Callable[..., _State], inputs: list[Any], state: _State) -> _State:
        """Run the steps along a grid axis as a scan, with the memory that they hand on."""
        size = self.grid[axis]
        taken = {
            k: d
            for k, blocks in enumerate(self.inputs)
            if (d := blocks.along(axis)) is not None and inputs[k] is not None
        }
        made = {k: d for k, blocks in enumerate(self.outputs) if (d := blocks.along(axis)) is not None}
        carried = [k for k in range(len(self.outputs)) if k not in made]
        xs = (
            jnp.arange(size, dtype=jnp.int32),
            [_split(inputs[k], dim, size) for k, dim in taken.items()],
            [_split(state.results[k], dim, size) for k, dim in made.items()],
        )
        before = [*(state.results[k] for k in carried), *state.scratch]
        left: list[Any] = []

        def body(carry: Any, x: Any) -> Any:
            index, parts, blocks = x
            own, results = list(inputs), list(state.results)
            for (k, dim), part in zip(taken.items(), parts, strict=True):
                own[k] = lax.expand_dims(part, [dim]) if part.ndim < len(self.inputs[k].shape) else part
            for (k, dim), part in zip(made.items(), blocks, strict=True):
                results[k] = lax.expand_dims(part, [dim]) if part.ndim < len(self.outputs[k].shape) else part
            found = [_held(value, like) for value, like in zip(carry, before, strict=True)]
            for k, one in zip(carried, found, strict=False):
                results[k] = one
            after = step(index, own, _State(results, found[len(carried) :]))
            left.append([*(after.results[k] for k in carried), *after.scratch])
            ys = [
                lax.squeeze(after.results[k], [dim]) if self.outputs[k].components[dim].block == 1 else after.results[k]
                for k, dim in made.items()
            ]
            return [_value(one) for one in left[-1]], ys

        values, ys = lax.scan(body, [_value(one) for one in before], xs)
        # the first step leaves no fewer places unwritten than all
        after = [_held(value, like) for value, like in zip(values, left[-1], strict=True)]
        results = list(state.results)
        for k, one in zip(carried, after, strict=False):
            results[k] = one
        for (k, dim), array in zip(made.items(), ys, strict=True):
            array = jnp.moveaxis(array, 0, dim)
            results[k] = lax.reshape(array, state.results[k].shape) if array.ndim > state.results[k].ndim else array
        return _State(results, after[len(carried) :])

    def _body(self, _: int, inputs: list[Any], state: _State, ids: list[Any], scalars: list[Any]) -> _State:
        """Run the body of the kernel on the blocks of one step."""
        # the references are this step's own: others may come after it from the same state
        outputs = [
            Ref(one.value, one.holes, one.known, own_part(blocks, self.seen, ("result", k)), far=self._far(k))
            for k, (blocks, one) in enumerate(zip(self.outputs, state.results, strict=True))
        ]
        scratch = [Ref(one.value, one.holes, guessed=self.own_scratch) for one in state.scratch]
        of_operand = {operand: result for result, operand in self.aliases.items()}
        refs = [
            outputs[of_operand[k]]
            if part is None
            else Ref(
                lax.squeeze(part, blocks.squeezed),
                own=own_part(blocks, self.seen, ("result", of_operand[k]) if k in of_operand else ("operand", k)),
                operand=True,
            )
            for k, (blocks, part) in enumerate(zip(self.inputs, inputs, strict=True))
        ]
        numbers, lengths = [ids[axis] for axis in self.seen], [self.lengths[axis] for axis in self.seen]
        memory = iter(scratch)
        held = [memory_for(one) if one[1] is None else next(memory) for one in self.scratch]
        copies = Copies() if self.copies else None
        numbers_given = [Ref(one, operand=True) for one in scalars]
        run_body(self.jaxpr, [*numbers_given, *refs, *outputs, *held], numbers, lengths, copies)
        return _State(outputs, scratch)

    def _starts(self, blocks: Blocks, axis: int, ids: list[Any], scalars: list[Any]) -> dict[int, Any]:
        """Return where a block begins along the dimensions that are picked at this grid axis."""
        dims = blocks.picked(axis)
        if not dims:
            return {}
        given = [*ids, *[np.int32(0)] * (len(self.grid) - len(ids))]
        indices = run_body(blocks.index_map, [*given, *map(Ref, scalars)], given, self.lengths)
        starts = {}
        for dim in dims:
            block, full = blocks.components[dim].block, blocks.shape[dim]
            if full % block:
                raise UnreadableKernel(f"blocks of {block} along a dimension of {full}, which they do not divide")
            at = within(indices[dim], full // block)
            at = lax.convert_element_type(at, jnp.int32)
            starts[dim] = at if block == 1 else lax.mul(at, np.int32(block))
        return starts


def _most_steps(mapping: Any, axis: int) -> int:
    """Return the least number of blocks along a dimension whose block has the number of a step.

    Raises:
        UnreadableKernel: no array has such a dimension.
    """
    counts = []
    for blocks in mapping.block_mappings:
        index_map = blocks.index_map_jaxpr.jaxpr
        for out, full, block in zip(index_map.outvars, blocks.array_aval.shape, blocks.block_shape, strict=True):
            size = 1 if type(block).__name__ == "Squeezed" or block is None else getattr(block, "block_size", block)
            if out is index_map.invars[axis] and isinstance(size, int) and full % size == 0:
                counts.append(int(full) // size)
    if not counts:
        raise UnreadableKernel(f"a grid whose size is computed, and no array has a block for each step: {mapping.grid}")
    return min(counts)


def _chosen(runs: Any, new: Any, old: Any) -> Any:
    """Return memory or an array after a step that may not run."""
    if isinstance(old, Ref):
        return Ref(jnp.where(runs, new.value, old.value), either(new.holes, old.holes), new.known and old.known)
    return jnp.where(runs, new, old)


def _machine(params: Any, axes: int, seen: tuple[int, ...]) -> tuple[tuple[bool, ...], bool, bool]:
    """Return what is known of the machine that a kernel is for.

    Returns:
        For each grid axis whether its steps run in turns; whether the kernel works in its results' memory; whether it
        is a TPU.
    """
    kind = f"{type(params).__module__}.{type(params).__qualname__}"
    if "mosaic_gpu" in kind or "mosaic" not in kind:
        return (False,) * axes, "triton" in kind, False
    semantics = getattr(params, "dimension_semantics", None) or ("arbitrary",) * len(seen)
    in_turns = {axis for axis, one in zip(seen, semantics, strict=True) if "parallel" not in str(one).lower()}
    # the semantics are of the axes that the kernel was written with; steps of those that jax.vmap adds are parallel
    return tuple(axis in in_turns for axis in range(axes)), False, True


def _value(one: Any) -> Any:
    return one.value if isinstance(one, Ref) else one


def _held(value: Any, like: Any) -> Any:
    """A value as memory where another one is."""
    return Ref(value, like.holes, like.known) if isinstance(like, Ref) else value


def _part(blocks: Blocks, array: Any, starts: dict[int, Any]) -> Any:
    if not starts:
        return array
    sizes = [blocks.components[d].block if d in starts else size for d, size in enumerate(array.shape)]
    return lax.dynamic_slice(array, _all_starts(array, starts), sizes, allow_negative_indices=False)


def _put(array: Any, part: Any, starts: dict[int, Any]) -> Any:
    if not starts:
        return part
    return lax.dynamic_update_slice(array, part, _all_starts(array, starts), allow_negative_indices=False)


def _all_starts(array: Any, starts: dict[int, Any]) -> list[Any]:
    return [starts.get(dim, np.int32(0)) for dim in range(array.ndim)]


def _cut(array: Any, dim: int | None, k: int, size: int) -> Any:
    """Block `k` of `size` along a dimension."""
    if array is None or dim is None:
        return array
    block = array.shape[dim] // size
    return lax.slice_in_dim(array, k * block, (k + 1) * block, axis=dim)


def _split(array: Any, dim: int, size: int) -> Any:
    """The blocks along a dimension, by a new axis 0; a block of one has none any more there."""
    block = array.shape[dim] // size
    if block > 1:
        array = lax.reshape(array, (*array.shape[:dim], size, block, *array.shape[dim + 1 :]))
    return jnp.moveaxis(array, dim, 0)
