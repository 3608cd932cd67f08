"""A Pallas kernel as a plain program: loops over its grid around its body.

The program has the semantics of the kernel's machine, not of interpret mode:

* Unwritten memory holds anything: scratch, blocks of results, masked elements of a load.
* An index of a block, or into a block, has to be in bounds; otherwise the kernel reaches foreign memory.
* On a TPU the steps of a grid axis run in order, unless `dimension_semantics` has "parallel": scratch, and a block that
  stays in place, carry over. Elsewhere steps run in parallel: scratch is new, and two steps may not write one block.
  In place they may: a read finds any step's store, and in Triton's kernels an old one, as threads run in any order.
* A result that is aliased to an operand has its memory, in Triton's kernels and for a TPU's copies to device memory.
  Otherwise a block is assembled elsewhere and written whole, with unwritten elements.
* A grid axis may have a computed length n. Up to M steps run, the number of blocks of an array, or of prefetched
  numbers that an index map reads by the step; steps from n on change nothing. This needs 0 <= n <= M, which the proof
  shows, or the user declares. If n differs between lanes, all memory depends on them.
* A block with a computed index keeps its content if the step before has the same indices; the kernel may compare them.
  Another block begins with anything, also where it returns to a block left before.
* On a TPU the last block may reach beyond the array: loads there give foreign memory, stores are dropped.
* Each step may work on one part of an array that the kernel takes whole (`guesses`).

More than 300 lines: the loops are one recursion.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ir_passes.jaxpr import ir
from ir_passes.kernels.blocks import SCRATCH, VISITS, BlockGuessFailed, Blocks, cut_by, step_part
from ir_passes.kernels.body import KernelRun, run_body, state_visit
from ir_passes.kernels.copies import Copies
from ir_passes.kernels.guesses import guesses_of
from ir_passes.kernels.memory import MAX_UNROLLED, UnreadableKernel, or_old, padded, within
from ir_passes.kernels.places import is_constant
from ir_passes.kernels.references import Ref, memory_for, memory_of, union
from ir_passes.kernels.unread_texts import no_order


def kernel_program(eqn: ir.JaxprEqn, written: bool | None = None) -> Callable[..., list[Any]]:
    """Return a `pallas_call` as a function; it or its trace may raise UnreadableKernel."""
    kernel = replace(_Kernel.of(eqn), written=written)

    def run(*operands: Any) -> list[Any]:
        """Run the kernel with the first guess of its blocks confirmed by the body."""
        guesses = guesses_of(kernel)
        while True:
            try:
                return kernel.guessed({key: options[0] for key, options in guesses.items() if options}).run(*operands)
            except BlockGuessFailed as error:
                del guesses[error.args[0]][0]

    return run


@dataclass
class _State:
    """Memory that a step passes to the next step.

    Attributes:
        results: arrays, or parts for inner grid axes; `Ref` for a known block.
    """

    results: list[Any]
    scratch: list[Ref]


@dataclass(frozen=True)
class _Kernel:
    """A kernel.

    Attributes:
        jaxpr: its body; the inputs are prefetched scalars, operands, results and scratch.
        grid: lengths of its axes; the maximum for a computed length.
        body_axes: axes that the body counts; `jax.vmap` adds others.
        in_place: True if it works in its results' memory, False if blocks are written whole.
        copies: True for a TPU, with asynchronous copies.
        aliases: result -> index in `inputs` of the operand with the same memory.
        new_scratch: scratch is new in each step of the grid axes up to this one, as guessed.
        rewrites: every step writes all of a computed block before it reads it, as guessed.
        computed: grid axes with an operand as length, in the order of these operands, which come first.
        stays: the step before has the same computed block.
        visit: states what is known of a computed block, given a run, its step and scalars.
        written: of the declared grid; None without a declaration.
        numbers: grid axis -> possible numbers of its steps.
    """

    jaxpr: Any
    grid: tuple[int, ...]
    body_axes: tuple[int, ...]
    sequential: tuple[bool, ...]
    in_place: bool
    copies: bool
    scalars: int
    inputs: tuple[Blocks, ...]
    outputs: tuple[Blocks, ...]
    aliases: dict[int, int]
    scratch: tuple[tuple[tuple[int, ...], Any], ...]
    new_scratch: int = -1
    rewrites: bool = False
    name: str = ""
    computed: tuple[int, ...] = ()
    lengths: tuple[Any, ...] = ()
    stays: bool = False
    visit: Callable[[KernelRun, Sequence[Any], Sequence[Any]], None] | None = None
    written: bool | None = None
    numbers: Mapping[int, range] = field(default_factory=dict)

    @classmethod
    def of(cls, eqn: ir.JaxprEqn) -> "_Kernel":
        params = eqn.params
        mapping = params["grid_mapping"]
        if params.get("mesh") is not None:
            raise UnreadableKernel("it runs on a mesh of cores")
        computed = tuple(axis for axis, size in enumerate(mapping.grid) if not isinstance(size, int))
        if len(computed) != mapping.num_dynamic_grid_bounds or (computed and mapping.vmapped_dims):
            raise UnreadableKernel(f"a grid whose size is computed: {mapping.grid}")
        scalars = mapping.num_index_operands
        body_axes = tuple(axis for axis in range(len(mapping.grid)) if axis not in mapping.vmapped_dims)
        machine = _machine(params["compiler_params"], len(mapping.grid), body_axes)
        grid = tuple(
            _most_steps(mapping, axis, pads=machine[-1]) if axis in computed else int(size)
            for axis, size in enumerate(mapping.grid)
        )
        cut = tuple(Blocks.of(blocks, grid, pads=machine[-1]) for blocks in mapping.block_mappings)
        inputs, outputs = cut[: mapping.num_inputs], cut[mapping.num_inputs :]
        aliases = {}
        for operand, result in dict(params["input_output_aliases"]).items():
            if operand < scalars:
                raise UnreadableKernel(f"result {result} takes the memory of operand {operand}, a prefetched scalar")
            if not inputs[operand - scalars].same_place(outputs[result]):
                raise UnreadableKernel(f"result {result} takes the memory of operand {operand} with other blocks")
            aliases[result] = operand - scalars
        kind = type(params["compiler_params"]).__module__
        if aliases and not (scalars or mapping.scratch_avals or "mosaic" in kind or "triton" in kind):
            # the default on GPUs is Triton, which has neither scalars nor scratch
            raise UnreadableKernel("a result in an operand's memory without compiler_params, perhaps written in place")
        scratch = tuple(memory_of(getattr(aval, "inner_aval", aval)) for aval in mapping.scratch_avals)
        arrays = scalars, inputs, outputs, aliases, scratch
        info = getattr(params["jaxpr"], "debug_info", None)
        name = str(params.get("name") or getattr(info, "func_name", "kernel"))
        return cls(params["jaxpr"], grid, body_axes, *machine, *arrays, name=name, computed=computed)

    def guessed(self, guesses: Mapping[Any, Any]) -> "_Kernel":
        """Return the kernel with arrays cut by steps, and other guesses, as of `guesses_of`."""
        inputs, outputs = list(self.inputs), list(self.outputs)
        for (kind, number), cut in ((key, cut) for key, cut in guesses.items() if key not in (SCRATCH, VISITS)):
            side = outputs if kind == "result" else inputs
            side[number] = cut_by(side[number], cut, self.grid)
            is_valid = number not in self.aliases.values()
            if kind == "result":  # blocks written as a whole are assembled by successive steps
                is_valid = self.works_in_place(number) or all(self.sequential[axis] for _, axis in cut)
            if not is_valid:
                raise UnreadableKernel(f"{kind} {number} cannot be cut along the grid axes of {cut}")
            if kind == "result" and number in self.aliases:
                inputs[self.aliases[number]] = side[number]
        sides = {"inputs": tuple(inputs), "outputs": tuple(outputs)}
        return replace(self, **sides, new_scratch=guesses.get(SCRATCH, -1), rewrites=VISITS in guesses)

    def check_order(self) -> None:
        for k, blocks in enumerate(self.outputs):
            is_computed = any(component.moves and component.axis is None for component in blocks.components)
            # without such a dimension, the first step of an inner axis may have the block of the step before
            is_new = all(self.grid[axis] == 1 or blocks.along(axis) is not None for axis in range(blocks.level))
            if self.written and not (self.copies and ((self.may_revisit(k) and is_new) or not is_computed)):
                raise UnreadableKernel(f"result {k}: no order of the steps shows what is written")
            for axis in [axis for axis, size in enumerate(self.grid) if size > 1 and axis not in blocks.axes]:
                if axis < blocks.level:
                    raise UnreadableKernel(f"result {k}: the steps of grid axis {axis} come back to blocks left before")
                if not self.sequential[axis] and not self.works_in_place(k):
                    raise UnreadableKernel(no_order(k, axis, self.grid[axis]))

    def run(self, *operands: Any) -> list[Any]:
        """Run all steps; raises BlockGuessFailed for a wrong part of an array."""
        self.check_order()
        bounds, operands = operands[: len(self.computed)], operands[len(self.computed) :]
        lengths: list[Any] = list(self.grid)
        for axis, bound in zip(self.computed, bounds, strict=True):
            if self.written is None:
                lengths[axis] = within(bound, self.grid[axis] + 1, self.name)
            else:
                length = lax.convert_element_type(bound, jnp.int32)
                lengths[axis] = lax.clamp(np.int32(0), length, np.int32(self.grid[axis]))
        scalars = [Ref(scalar, operand=True) for scalar in operands[: self.scalars]]
        return replace(self, lengths=tuple(lengths))._run(scalars, operands[self.scalars :])

    def _run(self, scalars: list[Ref], operands: Sequence[Any]) -> list[Any]:
        arrays = [padded(array, blocks.shape) for array, blocks in zip(operands, self.inputs, strict=True)]
        results = [
            arrays[self.aliases[k]] if k in self.aliases else self._unwritten(blocks.shape, blocks.dtype).content()
            for k, blocks in enumerate(self.outputs)
        ]
        # an aliased operand is read in the memory of its result
        aliased = {operand for result, operand in self.aliases.items() if not self.revisits(result)}
        inputs = [None if k in aliased else array for k, array in enumerate(arrays)]
        results = self._inside(-1, inputs, _State(results, self._fresh()), [], scalars).results
        return [
            array if blocks.shape == blocks.unpadded else lax.slice(array, [0] * array.ndim, blocks.unpadded)
            for array, blocks in zip(results, self.outputs, strict=True)
        ]

    def _unwritten(self, shape: tuple[int, ...], dtype: Any, private: bool = True, *rest: Any) -> Ref:
        """Return a result's new memory: zeros if no output depends on it."""
        if self.written:
            return Ref(lax.full(shape, 0, dtype), private=private)
        return Ref.fresh(shape, dtype, private, *rest)

    def _fresh(self) -> list[Ref]:
        return [Ref.fresh(shape, dtype) for shape, dtype in self.scratch if dtype is not None]

    def may_revisit(self, result: int) -> bool:
        """True if a step may have the computed block of the step before."""
        blocks = self.outputs[result]
        if blocks.level < 0 or not blocks.computed_dims(blocks.level) or blocks.along(blocks.level) is not None:
            return False
        return not self.works_in_place(result) and not any(self._shares(result, k) for k in range(len(self.grid)))

    def revisits(self, result: int) -> bool:
        return self.may_revisit(result) and not self.rewrites

    def _inside(self, axis: int, inputs: list[Any], state: _State, ids: list[Any], scalars: list[Ref]) -> _State:
        """Read blocks of one outer step, run the inner axes, write blocks."""
        parts = [
            array if array is None else _part(blocks, array, self._starts(blocks, axis, ids, scalars))
            for blocks, array in zip(self.inputs, inputs, strict=True)
        ]
        starts = [self._starts(blocks, axis, ids, scalars) for blocks in self.outputs]
        outer = [_part(blocks, *pair) for blocks, *pair in zip(self.outputs, state.results, starts, strict=True)]
        revisited = [k for k, blocks in enumerate(self.outputs) if blocks.level == axis and self.revisits(k)]
        for k in revisited:
            if k in self.aliases:  # loaded before or after an earlier step's store
                parts[self.aliases[k]] = or_old(parts[self.aliases[k]], outer[k])
        run = self._revisit if revisited else self._visit
        inner = run(axis, parts, _State(outer, state.scratch), ids, scalars)
        results = [_put(array, *pair) for array, *pair in zip(state.results, inner.results, starts, strict=True)]
        return _State(results, inner.scratch)

    def _revisit(self, axis: int, parts: list[Any], state: _State, ids: list[Any], scalars: list[Ref]) -> _State:
        """Run the first step, or one with another or the same block."""
        index, count, initial = ids[axis], len(self.outputs), [*state.results, *state.scratch]
        maps = {str(b.index_map): b for k, b in enumerate(self.outputs) if b.level == axis and self.revisits(k)}
        if len(maps) > 1:
            raise UnreadableKernel("results with different computed blocks, which may stay in place")
        (blocks,), ends = maps.values(), list[list[Any]]()
        dims, numbers = blocks.computed_dims(axis), self.numbers.get(axis, range(self.grid[axis]))
        number = index if is_constant(index) and index else lax.max(jnp.asarray(index, jnp.int32), np.int32(1))
        numbers = {**self.numbers, axis: range(max(numbers.start, 1), numbers.stop)}

        def visit(step: Any, stays: bool | None) -> Callable[..., list[Any]]:
            relation = None if stays is None else partial(state_visit, blocks, axis, stays)
            kernel = replace(self, stays=bool(stays), visit=relation, numbers=numbers)

            def run(*contents: Any) -> list[Any]:
                memory = list(map(_as_memory, contents, initial))
                begin = _State(memory[:count], memory[count:])
                end = kernel._visit(axis, parts, begin, [*ids[:axis], step], scalars)
                ends.append([*end.results, *end.scratch])
                return list(map(_value, ends[-1]))

            return run

        steps = (number, lax.sub(jnp.asarray(number, jnp.int32), np.int32(1)))
        places, previous_places = (self._indices(blocks, [*ids[:axis], step], scalars) for step in steps)
        stays = reduce(
            lax.mul, (lax.convert_element_type(lax.eq(places[dim], previous_places[dim]), jnp.int32) for dim in dims)
        )
        kind = lax.mul(lax.add(stays, np.int32(1)), lax.min(jnp.asarray(index, jnp.int32), np.int32(1)))
        kinds = [visit(np.int32(0), None), visit(number, False), visit(number, True)]
        memory = list(map(_joined, lax.switch(kind, kinds, *map(_value, initial)), *ends))
        return _State(memory[:count], memory[count:])

    def _visit(self, axis: int, parts: list[Any], state: _State, ids: list[Any], scalars: list[Ref]) -> _State:
        """Run the inner axes with the blocks that this axis completes."""
        parts, inner, outer = list(parts), list(state.results), state.results
        complete = [k for k, blocks in enumerate(self.outputs) if blocks.level == axis]
        for k in complete:
            part = lax.squeeze(outer[k], self.outputs[k].squeezed)
            # a Triton program's threads load and store without order among themselves
            is_private = not (self.in_place or any(self._shares(k, axis) for axis in range(len(self.grid))))
            if k in self.aliases and not self.works_in_place(k) and not self.revisits(k):
                parts[self.aliases[k]] = outer[k]
            if (k in self.aliases and self.works_in_place(k)) or (self.revisits(k) and self.stays):
                inner[k] = Ref(part, private=is_private)
            else:
                like = part if k in self.aliases else None
                assumed = VISITS if self.may_revisit(k) and self.rewrites else ""
                inner[k] = self._unwritten(part.shape, part.dtype, is_private, like, assumed)
        steps = self._loop if axis + 1 < len(self.grid) else self._body
        inner_state = steps(axis + 1, parts, _State(inner, state.scratch), ids, scalars)
        results = list(inner_state.results)
        for k in complete:
            results[k] = lax.expand_dims(results[k].content(), self.outputs[k].squeezed)
        return _State(results, inner_state.scratch)

    def works_in_place(self, result: int) -> bool:
        return self.in_place or self._copies_only(result)

    def _copies_only(self, result: int) -> bool:
        return self.copies and self.outputs[result].in_device_memory

    def _shares(self, result: int, axis: int) -> bool:
        """True if parallel steps along a grid axis may share a block of a result."""
        return self.grid[axis] > 1 and not self.sequential[axis] and self.outputs[result].along(axis) is None

    def _loop(self, axis: int, inputs: list[Any], state: _State, ids: list[Any], scalars: list[Ref]) -> _State:
        size = self.grid[axis]

        def step(index: Any, inputs: list[Any], state: _State, numbers: range | None = None) -> _State:
            kernel = self if numbers is None else replace(self, numbers={**self.numbers, axis: numbers})
            keeps = self.sequential[axis] and axis > self.new_scratch
            entry = state if keeps else _State(state.results, self._fresh())
            last = kernel._inside(axis, inputs, entry, [*ids, index], scalars)
            last = last if keeps else _State(last.results, state.scratch)
            if axis not in self.computed:
                return last
            runs = lax.lt(jnp.asarray(index, jnp.int32), lax.convert_element_type(self.lengths[axis], jnp.int32))
            results = [_chosen(runs, *pair) for pair in zip(last.results, state.results, strict=True)]
            return _State(results, [_chosen(runs, *pair) for pair in zip(last.scratch, state.scratch, strict=True)])

        pairs = [(blocks, blocks.along(axis)) for blocks in (*self.inputs, *self.outputs)]
        block_sizes = {dim: blocks.components[dim].block for blocks, dim in pairs if dim is not None}
        if size == 1 and not block_sizes:
            return step(np.int32(0), inputs, state)
        # lanes are usually rows: an unrolled step has a known block of them, but finds no later step's stores
        in_any_order = any(self._shares(k, axis) for k in range(len(self.outputs)))
        carries_over = not in_any_order and self._carries_over(axis)
        if size <= MAX_UNROLLED and (carries_over or (block_sizes.get(0, 1) > 1 and not in_any_order)):
            return self._in_turns(axis, step, inputs, state, [range(k, k + 1) for k in range(size)])
        if carries_over:  # the first step often begins a sum, and the last one stores it
            turns = [range(1), range(1, size - 1), range(size - 1, size)]
            return self._in_turns(axis, step, inputs, state, turns)
        return self._scanned(axis, step, inputs, state, range(size))

    def _carries_over(self, axis: int) -> bool:
        stays = any(axis > blocks.level for blocks in self.outputs)
        innermost = max((k for k, size in enumerate(self.grid) if size > 1), default=-1) == axis
        has_scratch = any(dtype is not None for _, dtype in self.scratch) and axis > self.new_scratch
        return self.grid[axis] > 1 and self.sequential[axis] and (stays or (has_scratch and innermost))

    def _in_turns(
        self, axis: int, step: Callable[..., _State], inputs: list[Any], state: _State, turns: Sequence[range]
    ) -> _State:
        """Run ranges of steps in order; a step alone has a constant number."""
        size, ends = self.grid[axis], []
        dims = [blocks.along(axis) for blocks in self.outputs]
        for turn in turns:
            pairs = zip(inputs, self.inputs, strict=True)
            parts = [_cut(array, blocks.along(axis), turn, size) for array, blocks in pairs]
            blocks = [_cut(array, dim, turn, size) for array, dim in zip(state.results, dims, strict=True)]
            begin = _State(blocks, state.scratch)
            if len(turn) == 1:
                end = step(np.int32(turn[0]), parts, begin)
            else:
                end = self._scanned(axis, step, parts, begin, turn)
            ends.append(end.results)
            ended = zip(state.results, end.results, dims, strict=True)
            state = _State([new if dim is None else old for old, new, dim in ended], end.scratch)
        results = [
            state.results[k] if dim is None else lax.concatenate([blocks[k] for blocks in ends], dim)
            for k, dim in enumerate(dims)
        ]
        return _State(results, state.scratch)

    def _scanned(
        self, axis: int, step: Callable[..., _State], inputs: list[Any], state: _State, numbers: range
    ) -> _State:
        size = len(numbers)
        dims = [{k: blocks.along(axis) for k, blocks in enumerate(side)} for side in (self.inputs, self.outputs)]
        covered = {k: dim for k, dim in dims[0].items() if dim is not None and inputs[k] is not None}
        stacked = {k: dim for k, dim in dims[1].items() if dim is not None}
        carried = [k for k in range(len(self.outputs)) if k not in stacked]
        xs = (
            jnp.arange(numbers.start, numbers.stop, dtype=jnp.int32),
            [_split(inputs[k], dim, size) for k, dim in covered.items()],
            [_split(state.results[k], dim, size) for k, dim in stacked.items()],
        )
        initial = [*(state.results[k] for k in carried), *state.scratch]
        carries: list[Any] = []

        def body(carry: Any, x: Any) -> Any:
            index, parts, blocks = x
            operands, results = list(inputs), list(state.results)
            for (k, dim), part in zip(covered.items(), parts, strict=True):
                operands[k] = lax.expand_dims(part, [dim]) if part.ndim < len(self.inputs[k].shape) else part
            for (k, dim), part in zip(stacked.items(), blocks, strict=True):
                results[k] = lax.expand_dims(part, [dim]) if part.ndim < len(self.outputs[k].shape) else part
            memory = [_as_memory(value, like) for value, like in zip(carry, initial, strict=True)]
            results = _replaced(results, carried, memory)
            last = step(index, operands, _State(results, memory[len(carried) :]), numbers)
            carries.append([*(last.results[k] for k in carried), *last.scratch])
            ys = [
                lax.squeeze(last.results[k], [dim]) if self.outputs[k].components[dim].block == 1 else last.results[k]
                for k, dim in stacked.items()
            ]
            return [_value(memory) for memory in carries[-1]], ys

        values, ys = lax.scan(body, [_value(memory) for memory in initial], xs)
        # the first step leaves no fewer places unwritten than all
        final = [_as_memory(value, like) for value, like in zip(values, carries[-1], strict=True)]
        results = _replaced(state.results, carried, final)
        for (k, dim), array in zip(stacked.items(), ys, strict=True):
            array = jnp.moveaxis(array, 0, dim)
            results[k] = lax.reshape(array, state.results[k].shape) if array.ndim > state.results[k].ndim else array
        return _State(results, final[len(carried) :])

    def _body(self, _: int, inputs: list[Any], state: _State, ids: list[Any], scalars: list[Ref]) -> _State:
        # new references for this step: other steps may start from the same state
        outputs = []
        for k, (blocks, ref) in enumerate(zip(self.outputs, state.results, strict=True)):
            part = step_part(blocks, self.body_axes, ("result", k))
            flags = {"copies_only": self._copies_only(k), "assumed": ref.assumed}
            outputs.append(Ref(ref.value, ref.holes, ref.private, part, **flags))
        assumed = SCRATCH if self.new_scratch >= 0 else ""
        scratch = [Ref(ref.value, ref.holes, assumed=assumed) for ref in state.scratch]
        results = {operand: result for result, operand in self.aliases.items()}
        refs = []
        for k, (blocks, part) in enumerate(zip(self.inputs, inputs, strict=True)):
            if part is None:
                refs.append(outputs[results[k]])
                continue
            cut = step_part(blocks, self.body_axes, ("result", results[k]) if k in results else ("operand", k))
            refs.append(Ref(lax.squeeze(part, blocks.squeezed), part=cut, operand=True))
        numbers, lengths = [ids[axis] for axis in self.body_axes], [self.lengths[axis] for axis in self.body_axes]
        memory = iter(scratch)
        scratch_args = [memory_for(kind) if kind[1] is None else next(memory) for kind in self.scratch]
        copies = Copies() if self.copies else None

        def facts(body: KernelRun) -> None:
            steps = ((ids[axis], values) for axis, values in self.numbers.items())
            body.domains.update({body.term(step): values for step, values in steps if not is_constant(step)})
            if self.visit is not None:
                self.visit(body, ids, scalars)

        run_body(self.jaxpr, [*scalars, *refs, *outputs, *scratch_args], numbers, lengths, copies, facts)
        return _State(outputs, scratch)

    def _indices(self, blocks: Blocks, ids: list[Any], scalars: list[Ref]) -> list[Any]:
        steps = [*ids, *[np.int32(0)] * (len(self.grid) - len(ids))]
        return run_body(blocks.index_map, [*steps, *scalars], steps, self.lengths)

    def _starts(self, blocks: Blocks, axis: int, ids: list[Any], scalars: list[Ref]) -> dict[int, Any]:
        dims = blocks.computed_dims(axis)
        if not dims:
            return {}
        indices, starts = self._indices(blocks, ids, scalars), {}
        for dim in dims:
            block, full = blocks.components[dim].block, blocks.shape[dim]
            if full % block:
                raise UnreadableKernel(f"blocks of {block} along a dimension of {full}, which they do not divide")
            start = within(indices[dim], full // block)
            start = lax.convert_element_type(start, jnp.int32)
            starts[dim] = start if block == 1 else lax.mul(start, np.int32(block))
        return starts


def _most_steps(mapping: Any, axis: int, pads: bool) -> int:
    """Return the fewest blocks, or prefetched numbers of blocks, along a grid axis; raises UnreadableKernel."""
    counts = []
    for blocks in mapping.block_mappings:
        index_map = blocks.index_map_jaxpr.jaxpr
        for eqn in index_map.eqns:
            if eqn.primitive.name == "get" and eqn.invars[1:] == [index_map.invars[axis]]:
                counts.append(int(eqn.invars[0].aval.shape[0]))
        for out, full, block in zip(index_map.outvars, blocks.array_aval.shape, blocks.block_shape, strict=True):
            size = 1 if type(block).__name__ == "Squeezed" or block is None else getattr(block, "block_size", block)
            if out is index_map.invars[axis] and isinstance(size, int) and (pads or full % size == 0):
                counts.append(-(-int(full) // size))
    if not counts:
        raise UnreadableKernel(f"a grid whose size is computed, and no array has a block for each step: {mapping.grid}")
    return min(counts)


def _chosen(runs: Any, new: Any, old: Any) -> Any:
    if isinstance(old, Ref):
        holes = union(new.holes, old.holes)
        return Ref(jnp.where(runs, new.value, old.value), holes, new.private and old.private, assumed=old.assumed)
    return jnp.where(runs, new, old)


def _machine(params: Any, axes: int, body_axes: tuple[int, ...]) -> tuple[tuple[bool, ...], bool, bool]:
    """Return for each axis whether steps run in order; `in_place`; whether a TPU."""
    kind = f"{type(params).__module__}.{type(params).__qualname__}"
    if "mosaic_gpu" in kind or "mosaic" not in kind:
        return (False,) * axes, "triton" in kind, False
    semantics = getattr(params, "dimension_semantics", None) or ("arbitrary",) * len(body_axes)
    pairs = zip(body_axes, semantics, strict=True)
    in_order = {axis for axis, semantic in pairs if "parallel" not in str(semantic).lower()}
    # steps along axes that jax.vmap adds are parallel
    return tuple(axis in in_order for axis in range(axes)), False, True


def _value(memory: Any) -> Any:
    return memory.value if isinstance(memory, Ref) else memory


def _as_memory(value: Any, like: Any) -> Any:
    return Ref(value, like.holes, like.private, assumed=like.assumed) if isinstance(like, Ref) else value


def _joined(value: Any, *memories: Any) -> Any:
    """Return memory with the places unwritten at any of several ends."""
    if isinstance(memories[0], Ref):
        memories[0].holes = union(*(memory.holes for memory in memories))
    return _as_memory(value, memories[0])


def _replaced(arrays: Sequence[Any], indices: Sequence[int], new: Sequence[Any]) -> list[Any]:
    new_at = dict(zip(indices, new, strict=False))
    return [new_at.get(k, array) for k, array in enumerate(arrays)]


def _part(blocks: Blocks, array: Any, starts: dict[int, Any]) -> Any:
    if not starts:
        return array
    sizes = [blocks.components[d].block if d in starts else size for d, size in enumerate(array.shape)]
    return lax.dynamic_slice(array, _all_starts(array, starts), sizes, allow_negative_indices=False)


def _put(array: Any, part: Any, starts: dict[int, Any]) -> Any:
    if not starts:
        return part
    if part.shape == array.shape:  # a block that another step may have loaded before
        return or_old(part, array)
    return lax.dynamic_update_slice(array, part, _all_starts(array, starts), allow_negative_indices=False)


def _all_starts(array: Any, starts: dict[int, Any]) -> list[Any]:
    return [starts.get(dim, np.int32(0)) for dim in range(array.ndim)]


def _cut(array: Any, dim: int | None, steps: range, size: int) -> Any:
    if array is None or dim is None:
        return array
    block = array.shape[dim] // size
    return lax.slice_in_dim(array, steps.start * block, steps.stop * block, axis=dim)


def _split(array: Any, dim: int, size: int) -> Any:
    """Return blocks on a new axis 0, squeezed if of one element."""
    block = array.shape[dim] // size
    if block > 1:
        array = lax.reshape(array, (*array.shape[:dim], size, block, *array.shape[dim + 1 :]))
    return jnp.moveaxis(array, dim, 0)
