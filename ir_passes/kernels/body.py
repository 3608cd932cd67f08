"""A Pallas kernel's body as a function of arrays.

More than 300 lines: one interpreter, with a method for each primitive.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.bodies import counting_loop
from ir_passes.jaxpr.primitives import ELEMENTWISE
from ir_passes.kernels import index_terms
from ir_passes.kernels.blocks import BlockGuessFailed, Blocks, StepPart
from ir_passes.kernels.copies import Copies, Copy, Key, Loop, Semaphores
from ir_passes.kernels.index_terms import Term
from ir_passes.kernels.memory import MAX_CONSTANT, MAX_UNROLLED, UnreadableKernel, uninitialized
from ir_passes.kernels.places import IndexRange, SelectedBox, is_constant, place_of, places_of, read_at, varying_along
from ir_passes.kernels.references import HeldMemory, Ref, memory_for, memory_of, split_reference, union
from ir_passes.kernels.unread_texts import other_machine

COPYING = ("dma_start", "dma_wait")


@dataclass(frozen=True)
class KernelRun:
    """A run of a kernel's program.

    Attributes:
        producers: id of an array -> array, equation, operands and number of the result.
        counted: term of a loop's counter -> term of its end, first and last counter.
        selected: id of a masked load's result -> result, box of its mask, elements in the box.
        domains: values of unknown numbers.
        compared: pairs of terms, known to be equal or not.
    """

    ids: tuple[Any, ...]
    grid: tuple[Any, ...]
    producers: dict[int, tuple[Any, ir.JaxprEqn, list[Any], int]] = field(default_factory=dict)
    copies: Copies | None = None
    dead: set[Any] = field(default_factory=set)
    terms: dict[int, tuple[Any, Term]] = field(default_factory=dict)
    counted: dict[Term, tuple[Term, Any, Any]] = field(default_factory=dict)
    selected: dict[int, tuple[Any, SelectedBox, Any]] = field(default_factory=dict)
    domains: dict[Term, Sequence[int]] = field(default_factory=dict)
    compared: dict[tuple[Term, Term], bool] = field(default_factory=dict)

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        used = {atom for eqn in jaxpr.eqns for atom in eqn.invars if not isinstance(atom, ir.Literal)}
        used.update(atom for atom in jaxpr.outvars if not isinstance(atom, ir.Literal))
        self.dead.update(var for eqn in jaxpr.eqns for var in eqn.outvars if var not in used)
        return ir.run(jaxpr, consts, args, self._located)

    def _located(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        with ir.sourced(eqn):
            try:
                return self._equation(eqn, args)
            except UnreadableKernel as error:
                raise error.at(eqn) from None

    def _equation(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        name, params = eqn.primitive.name, eqn.params
        method = getattr(self, f"_{name}", None)
        if method is not None:
            return method(eqn, args)
        body = ir.body_of(eqn)
        if body is not None:
            return self.run(body.jaxpr, body.consts, args)
        if any(isinstance(arg, Ref | Semaphores) for arg in args):
            raise UnreadableKernel("it has no plain form")
        if args and all(map(is_constant, args)) and not any(ir.shape_of(var) for var in eqn.outvars):
            return ir.evaluated(eqn, args)
        bound = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(params))
        results = bound if eqn.primitive.multiple_results else [bound]
        # JAX returns the operand itself, as in a conversion to its own dtype
        new = [(k, value) for k, value in enumerate(results) if not any(value is arg for arg in args)]
        self.producers.update({id(value): (value, eqn, args, k) for k, value in new})
        return results

    def constant(self, value: Any) -> Any:
        """Return a value as a NumPy array if it is known now."""
        if is_constant(value) or id(value) not in self.producers:
            return value
        _, eqn, args, number = self.producers[id(value)]
        if any(np.prod(ir.shape_of(var)) > MAX_CONSTANT for var in eqn.outvars):
            return value
        operands = [self.constant(arg) for arg in args]
        if not all(map(is_constant, operands)):
            return value
        return ir.evaluated(eqn, operands)[number]

    def term(self, value: Any) -> Term:
        if is_constant(value) and np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iub":
            return index_terms.constant(value)
        if id(value) not in self.terms:
            _, eqn, args, _ = self.producers.get(id(value), (None, None, [], 0))
            is_operation = eqn is not None and index_terms.is_operation(eqn)
            term = index_terms.operation(eqn, list(map(self.term, args))) if is_operation else None
            self.terms[id(value)] = value, term or index_terms.unknown(id(value))
        return self.terms[id(value)][1]

    def decided(self, value: Any) -> Any:
        """Return a scalar as a constant if all cases of its term have one number."""
        if is_constant(value):
            return value
        term = index_terms.with_compared(self.term(value), self.compared, self.domains)
        cases = index_terms.numbers_of((term,), self.domains)
        numbers = [] if cases is None else np.unique(cases[0])
        return np.asarray(numbers[0], value.dtype)[()] if len(numbers) == 1 else value

    def _key(self, indexers: Sequence[Any]) -> Key:
        places = [[place_of(index) for index in getattr(indexer, "indices", ())] for indexer in indexers]
        return tuple(tuple((self.term(place.start), place.size, place.stride) for place in part) for part in places)

    def _loaded(self, eqn: ir.JaxprEqn, ref: Ref, indexers: Sequence[Any]) -> Any:
        """Return the elements at a place.

        Two loads of a number without writes are equal terms.
        """
        key = self._key(indexers)
        elements = ref.load(places_of(eqn, indexers), key)
        if ref.operand and np.ndim(elements) == 0 and not is_constant(elements):
            sizes = tuple((size, stride) for part in key for _, size, stride in part)
            starts = [start for part in key for start, _, _ in part]
            self.terms[id(elements)] = elements, index_terms.unknown((ref, sizes), starts)
        return elements

    def _program_id(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        return [self.ids[eqn.params["axis"]]]

    def _num_programs(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        length = self.grid[eqn.params["axis"]]
        return [np.int32(length) if isinstance(length, int) else length]

    def _broadcast_to(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        return [jnp.broadcast_to(args[0], eqn.params["shape"])]

    def _multiple_of(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        return [args[0]]

    _max_contiguous = _multiple_of

    def _roll(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        """Rotate as `jnp.roll`, JAX's definition of `pltpu.roll` outside a TPU."""
        axis, stride = eqn.params["axis"], eqn.params["stride"]
        if stride is None:
            return [jnp.roll(args[0], args[1], axis)]
        along = eqn.params["stride_axis"]
        parts = jnp.split(args[0], args[0].shape[along], along)
        rolled = [jnp.roll(part, args[1] + number * stride, axis) for number, part in enumerate(parts)]
        return [jnp.concatenate(rolled, along)]

    def _get(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        ref, *indexers = args
        return [self._loaded(eqn, ref, self._within(ref, jax.tree.unflatten(eqn.params["tree"], indexers)))]

    def _swap(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        ref, new, *indexers = args
        return self._exchanged(eqn, ref, self._within(ref, jax.tree.unflatten(eqn.params["tree"], indexers), True), new)

    def _addupdate(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        ref, new, *indexers = args
        indexers = self._within(ref, jax.tree.unflatten(eqn.params["tree"], indexers), True)
        ref.store(places_of(eqn, indexers), lax.add(self._loaded(eqn, ref, indexers), new), None, self._key(indexers))
        return []

    def _masked_load(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        ref, indexers, mask, other = jax.tree.unflatten(eqn.params["args_tree"], args)
        indexers = self._within(ref, indexers)
        box = self._box(indexers, mask, ir.shape_of(eqn.outvars[0]))
        if box is not None:
            part = ref.load(box.places)
            result = box.padded(part, mask, other)
            self.selected[id(result)] = result, box, part
            return [result]
        elements = self._loaded(eqn, ref, indexers)
        if mask is not None:
            other = uninitialized(elements.shape, elements.dtype) if other is None else other
            elements = jnp.where(mask, elements, other)
        return [elements]

    def _masked_swap(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        ref, indexers, new, mask = jax.tree.unflatten(eqn.params["args_tree"], args)
        indexers = self._within(ref, indexers, True)
        box = self._box(indexers, mask, ir.shape_of(eqn.outvars[0]))
        if box is not None:
            old = None if eqn.outvars[0] in self.dead else box.padded(ref.load(box.places), mask, None)
            ref.store(box.places, self._part_of(new, box))
            return [old]
        return self._exchanged(eqn, ref, indexers, new, mask)

    def _part_of(self, value: Any, box: SelectedBox) -> Any:
        """Return a value's elements in a box; elementwise operations on masked loads read no others."""
        _, loaded, part = self.selected.get(id(value), (None, None, None))
        if loaded is not None and (loaded.bounds, loaded.shape) == (box.bounds, box.shape):
            return part
        _, eqn, args, number = self.producers.get(id(value), (None, None, [], 0))
        shapes = {np.shape(arg) for arg in args} - {()}
        if eqn is None or eqn.primitive.name not in ELEMENTWISE or shapes != {box.shape}:
            return box.of(value)
        parts = [self._part_of(arg, box) if np.shape(arg) else arg for arg in args]
        result = eqn.primitive.bind(*parts, **eqn.primitive.get_bind_params(eqn.params))
        return result[number] if eqn.primitive.multiple_results else result

    def _exchanged(self, eqn: ir.JaxprEqn, ref: Ref, indexers: Sequence[Any], new: Any, mask: Any = None) -> list[Any]:
        places, key = places_of(eqn, indexers), self._key(indexers)
        old = None if eqn.outvars[0] in self.dead else ref.load(places, key)
        ref.store(places, new, mask, key)
        return [old]

    def _within(self, ref: Ref, indexers: Sequence[Any], writes: bool = False, copies: bool = False) -> Sequence[Any]:
        """Return indexers into the reference's part; raises BlockGuessFailed elsewhere."""
        if writes and ref.copies_only and not copies:
            raise UnreadableKernel("a store to memory that only copies reach")
        if writes and ref.operand:
            raise UnreadableKernel("a store to an operand whose memory no result takes")
        indexers = self._in_part(ref.part, indexers)
        if self.copies is not None:
            self.copies.check(ref, self._key(indexers), writes)
        return indexers

    def _in_part(self, part: StepPart | None, indexers: Sequence[Any]) -> Sequence[Any]:
        if part is None:
            return indexers
        if not indexers or getattr(indexers[0], "indices", None) is None:
            raise BlockGuessFailed(part.array)
        first, *rest = indexers
        places, shape = [self._index(index) for index in first.indices], list(first.shape)
        for dim, axis in part.steps.items():
            place, size = places[dim], part.sizes[dim]
            if (place.size or 1, place.stride) != (size, 1) or not self._begins(place.start, axis, size):
                raise BlockGuessFailed(part.array)
            places[dim], shape[dim] = IndexRange(0, place.size), size
        return [replace(first, indices=tuple(places), shape=tuple(shape)), *rest]

    def _begins(self, start: Any, axis: int, size: int) -> bool:
        """Whether an index is a step's number along a grid axis, times `size`."""
        number = self.ids[axis]
        if is_constant(start) and is_constant(number):
            return np.ndim(start) == 0 and int(start) == int(number) * size
        if start is number:
            return size == 1
        _, eqn, args, _ = self.producers.get(id(start), (None, None, [], 0))
        if eqn is None:
            return False
        if eqn.primitive.name == "convert_element_type" and start.dtype in (np.int32, np.int64):
            return self._begins(args[0], axis, size)
        if eqn.primitive.name == "mul":
            factors = [int(arg) for arg in args if is_constant(arg) and np.ndim(arg) == 0]
            return len(factors) == 1 and factors[0] == size and any(self._begins(arg, axis, 1) for arg in args)
        return False

    def _box(self, indexers: Sequence[Any], mask: Any, shape: tuple[int, ...]) -> SelectedBox | None:
        constant = self.constant(mask)
        if not is_constant(constant) or len(indexers) > 1:
            return None
        mask = np.broadcast_to(constant, shape)
        bounds = [np.flatnonzero(mask.any(tuple(d for d in range(mask.ndim) if d != dim))) for dim in range(mask.ndim)]
        box = tuple((int(positions[0]), int(positions[-1]) + 1) for positions in bounds if positions.size)
        if len(box) < mask.ndim or mask.sum() != np.prod([end - begin for begin, end in box]):
            return None
        indices = [self._index(index) for index in getattr(indexers[0], "indices", ())] if indexers else []
        sizes = indexers[0].shape if indexers else shape
        indices = indices or [IndexRange(0, size) for size in shape]
        arrays, places, dim = any(np.ndim(index.start) for index in indices), [], 0
        for index in indices:
            if not is_constant(index.start) or (arrays and not np.ndim(index.start)):
                return None
            if index.size is None and not np.ndim(index.start):
                places.append(IndexRange(int(index.start), None))
                continue
            begin, end = box[dim]
            size, start = index.size, index.start
            numbers = varying_along(start, dim) if size is None else np.arange(size) * index.stride + start
            if numbers is None:
                return None
            numbers = np.broadcast_to(numbers, shape[dim : dim + 1])[begin:end]
            places.append(IndexRange(int(numbers[0]), end - begin))
            if np.any(np.diff(numbers) != 1):
                return None
            dim += 1
        if dim < len(shape) or not all(
            0 <= p.start <= size - (p.size or 1) for p, size in zip(places, sizes, strict=True)
        ):
            return None
        return SelectedBox([places], box, shape)

    def _index(self, index: Any) -> IndexRange:
        place = place_of(index)
        return place if place is index else replace(place, start=self.constant(place.start))

    def _dma_start(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        copies, (source, read), (target, written), semaphore = self._copied(eqn, args)
        if eqn.params.get("add"):
            raise UnreadableKernel("a copy that adds")
        read = self._within(source, read)
        value = source.load(places_of(eqn, read), self._key(read))
        written = self._within(target, written, True, copies=True)
        copies.start(Copy(source, target, self._key(read), self._key(written), semaphore, value))
        return []

    def _dma_wait(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        copies, (source, read), (target, written), semaphore = self._copied(eqn, args)
        read, written = self._in_part(source.part, read), self._in_part(target.part, written)
        named = Copy(source, target, self._key(read), self._key(written), semaphore, None)
        copy = copies.wait(named)
        value, places = copy.value, places_of(eqn, self._within(target, written, True, copies=True))
        if value is None:
            if not copies.are_same(copy, named, ("read",)):
                raise UnreadableKernel("a wait for a copy of another source")
            value = source.load(places_of(eqn, self._within(source, read)), named.read)
        if value.shape != read_at(target.value, places).shape:
            raise UnreadableKernel("a copy into another shape")
        target.store(places, value, None, named.written)
        return []

    def _copied(self, eqn: ir.JaxprEqn, args: list[Any]) -> tuple[Copies, Any, Any, Any]:
        source, target, semaphore, other, device = jax.tree.unflatten(eqn.params["tree"], args)
        if self.copies is None or other is not None or device is not None:
            raise UnreadableKernel(other_machine(device))
        (semaphores, indexers), sides = split_reference(semaphore), (split_reference(source), split_reference(target))
        places = [place_of(index) for indexer in indexers for index in getattr(indexer, "indices", ())]
        index = tuple(self.term(place.start) for place in places)
        domains, shape = self.copies.domains, semaphores.shape
        is_bounded = self.copies.missing is not None or all(
            index_terms.in_bounds(term, size, domains) for term, size in zip(index, shape, strict=False)
        )
        if len(index) != len(shape) or any(place.size not in (None, 1) for place in places) or not is_bounded:
            raise UnreadableKernel("a semaphore whose index is not shown to be in bounds")
        return self.copies, *sides, (semaphores, (tuple((term, None, 1) for term in index),))

    def _run_scoped(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        if eqn.params.get("collective_axes"):
            raise UnreadableKernel("run_scoped over collective axes")
        jaxpr = eqn.params["jaxpr"]
        outer = [] if self.copies is None else list(self.copies.running)
        results = self.run(jaxpr, args, [memory_for(memory_of(var.aval)) for var in jaxpr.invars])
        if self.copies is not None and any(copy not in outer for copy in self.copies.running):
            raise UnreadableKernel("a copy is under way at the end of run_scoped")
        return results

    def _cond(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        predicate, *operands = self.decided(args[0]), *args[1:]
        branches = eqn.params["branches"]
        if is_constant(predicate):
            only = branches[min(max(int(predicate), 0), len(branches) - 1)]
            return self.run(only.jaxpr, only.consts, operands)
        memory = HeldMemory.of(operands)
        holes_after: list[Any] = []
        copies, test = self.copies or Copies(), self.term(predicate)
        entry_copies, facts = list(copies.running), [copies.fact(test, k, len(branches)) for k in range(len(branches))]
        ends: dict[int, list[Copy]] = {}

        def branch(k: int, program: Any) -> Callable[..., Any]:
            def run(contents: list[Any]) -> Any:
                copies.running = list(entry_copies)
                with memory.holding(contents), copies.known(facts[k]):
                    results = self.run(program.jaxpr, program.consts, self._before_last(operands, facts[k]))
                    ends[k] = list(copies.running)
                    holes_after.append(memory.holes())
                    return results, memory.contents()

            return run

        programs = [branch(k, program) for k, program in enumerate(branches)]
        results, contents = lax.switch(predicate, programs, memory.contents())
        copies.joined(entry_copies, [ends[k] for k in range(len(branches))], facts)
        memory.set(contents, [union(*holes) for holes in zip(*holes_after, strict=True)])
        return results

    def _before_last(self, operands: Sequence[Any], fact: Any) -> list[Any]:
        """State a counter's bounds in a branch for all iterations but the last."""
        (pair, branch, branches), stated = fact, list(operands)
        for counter, (end, begin, last) in self.counted.items():
            if (pair, branch, branches) != ((counter, end, 1), 1, 2):
                continue
            for k, value in enumerate(operands):
                if isinstance(value, Ref | Semaphores) or is_constant(value) or np.ndim(value):
                    continue
                term = self.term(value)
                number, by = index_terms.without_constant(term)
                if number == counter and by in (0, 1) and value.dtype == begin.dtype:  # neither sum wraps
                    offset, last_offset = np.asarray(by, value.dtype), np.asarray(by - 1, value.dtype)
                    stated[k] = lax.max(lax.min(value, lax.add(last, last_offset)), lax.add(begin, offset))
                    self.terms[id(stated[k])] = stated[k], term
        return stated

    def _scan(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        params = eqn.params
        num_consts, num_carry = ir.scan_counts(eqn)
        body, length = ir.closed(params["jaxpr"]), params["length"]
        consts, carry, xs = args[:num_consts], args[num_consts : num_consts + num_carry], args[num_consts + num_carry :]
        memory = HeldMemory.of(consts)
        if any(isinstance(value, Ref) for value in (*carry, *xs)):
            raise UnreadableKernel("a loop that carries references")
        names = {inner.primitive.name for inner in ir.all_eqns(body.jaxpr)}
        unrolls = any(ref.has_holes for ref in memory.refs) or bool(names & {"masked_load", "masked_swap", *COPYING})
        if length <= MAX_UNROLLED and unrolls and not xs and num_carry == len(eqn.outvars):
            for _ in range(length):
                carry = self.run(body.jaxpr, body.consts, [*consts, *carry])
            return list(carry)
        holes_after: list[Any] = []
        running = self._running()

        def step(state: Any, x: Any) -> Any:
            contents, values = state
            with memory.holding(contents):
                results = self.run(body.jaxpr, body.consts, [*consts, *values, *x])
                self._check_running(running)
                holes_after.append(memory.holes())
                return (memory.contents(), results[:num_carry]), results[num_carry:]

        first = memory.contents(), arrays_of(carry, body.jaxpr.invars[num_consts:])
        (contents, values), ys = lax.scan(step, first, list(xs), length=length, reverse=params["reverse"])
        memory.set(contents, holes_after[-1] if length else memory.holes())
        return [*values, *ys]

    def _running(self) -> list[Copy]:
        return [] if self.copies is None else list(self.copies.running)

    def _check_running(self, running: list[Copy]) -> None:
        """Raise UnreadableKernel if an iteration starts or awaits a copy."""
        if self.copies is not None and self.copies.running != running:
            raise UnreadableKernel("a copy is under way at the end of an iteration")

    def _while(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        params = eqn.params
        condition, body = params["cond_jaxpr"], params["body_jaxpr"]
        num_condition, num_body = params["cond_nconsts"], params["body_nconsts"]
        outer, inner = args[:num_condition], args[num_condition : num_condition + num_body]
        carry = args[num_condition + num_body :]
        if any(isinstance(value, Ref) for value in carry):
            raise UnreadableKernel("a loop that carries references")
        memory = HeldMemory.of([*outer, *inner])
        names = {inner.primitive.name for inner in ir.all_eqns(body.jaxpr)}
        copies = self.copies if self.copies is not None and names & set(COPYING) else None
        first = memory.contents(), arrays_of(carry, body.jaxpr.invars[num_body:])
        carried, counting = condition.jaxpr.invars[num_condition:], counting_loop(eqn)
        counted = (counting[0], carried.index(counting[1])) if counting and counting[1] in carried else None
        is_unchanged = [out is var for out, var in zip(body.jaxpr.outvars, body.jaxpr.invars[num_body:], strict=True)]
        loop_key = object()
        numbers = [index_terms.unknown((loop_key, k)) for k in range(len(carry))]
        terms = [self.term(value) if is_unchanged[k] else numbers[k] for k, value in enumerate(carry)]
        loop = Loop(copies or Copies(), numbers, list(map(self.term, carry)))
        running = self._running()

        def goes_on(state: Any) -> Any:
            contents, values = state
            with memory.holding(contents):
                return self.run(condition.jaxpr, condition.consts, [*outer, *values])[0]

        def iteration(values: list[Any]) -> list[Any]:
            if counted is not None:
                number, end = counted
                begin = first[1][number]
                last = lax.sub(lax.max(first[1][end], begin), np.ones((), begin.dtype))
                values = [*values[:number], lax.max(lax.min(values[number], last), begin), *values[number + 1 :]]
                self.counted[numbers[number]] = terms[end], begin, last
            for k, term in enumerate(terms):
                if term in loop.copies.domains and not isinstance(loop.copies.domains[term], range):
                    limits = (limit(loop.copies.domains[term]) for limit in (min, max))
                    low, high = (np.asarray(limit, values[k].dtype) for limit in limits)
                    values = [*values[:k], lax.max(lax.min(values[k], high), low), *values[k + 1 :]]
                self.terms[id(values[k])] = values[k], term
            return self.run(body.jaxpr, body.consts, [*inner, *values])

        def looked_through(state: Any) -> Any:
            contents, values = state
            with memory.holding(contents):
                for value, term in zip(values, terms, strict=True):
                    self.terms[id(value)] = value, term
                loop.test = self.term(self.run(condition.jaxpr, condition.consts, [*outer, *values])[0])
                loop.following = list(map(self.term, iteration(values)))
            return ()

        def step(state: Any) -> Any:
            contents, values = state
            loop.begin()
            with memory.holding(contents), loop.copies.known(*([loop.copies.fact(loop.test)] if loop.test else [])):
                results = iteration(values)
                if copies is None:
                    self._check_running(running)
                else:
                    loop.end()
                return memory.contents(), results

        if copies is None:
            loop.outer_copies = running
        else:
            with loop.looked_through():
                jax.eval_shape(looked_through, first)
            for k, (number, *pair) in enumerate(zip(numbers, loop.first, loop.following, strict=True)):
                values = index_terms.domain(number, *pair)
                if counted is not None and k == counted[0] and pair[0].constant is not None:
                    values = range(pair[0].constant, int(jnp.iinfo(first[1][k].dtype).max))  # below the end
                copies.domains.update({number: values} if values else {})
            loop.enter()
            loop.begin()
        contents, values = lax.while_loop(goes_on, step, first)
        loop.leave()
        memory.set(contents, memory.holes())
        return list(values)


def state_visit(
    blocks: Blocks, axis: int, stays: bool, body: KernelRun, ids: Sequence[Any], scalars: Sequence[Any]
) -> None:
    """State the relation of a computed block's indices in two successive steps.

    Args:
        axis: of the grid.
        stays: True if both steps have the same block.
    """
    difference = jax.make_jaxpr(lambda number: lax.sub(number, np.int32(1)))(np.int32(0))
    (previous,) = body.run(difference.jaxpr, difference.consts, [ids[axis]])
    dims, pairs = blocks.computed_dims(axis), []
    for steps in (ids, (*ids[:axis], previous, *ids[axis + 1 :])):
        indices = body.run(blocks.index_map, (), [*steps, *scalars])
        pairs.append([body.term(indices[dim]) for dim in dims])
    if stays or len(dims) == 1:  # otherwise any of the indices may differ
        body.compared.update(dict.fromkeys(zip(*pairs, strict=True), stays))


def run_body(
    jaxpr: Any,
    args: Sequence[Any],
    ids: Sequence[Any],
    grid: Sequence[Any],
    copies: Copies | None = None,
    facts: Callable[[KernelRun], None] = lambda body: None,
) -> list[Any]:
    """Run a kernel's body, or an index map; change its references; may raise UnreadableKernel.

    Args:
        ids, grid: the step's number along each grid axis, and its length, computed or not.
        copies: empty before and after.
        facts: states facts about numbers.
    """
    body = KernelRun(tuple(ids), tuple(grid), copies=copies)
    facts(body)
    if copies is not None:
        steps = {body.term(step): range(length) for step, length in zip(ids, grid, strict=True) if is_constant(length)}
        copies.domains.update({term: numbers for term, numbers in steps.items() if term.constant is None})
    results = body.run(jaxpr, (), args)
    if copies is not None and copies.running:
        raise UnreadableKernel("a copy is under way when a step ends")
    return results


def arrays_of(values: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Return arrays with the dtypes of a program's inputs."""
    return [jnp.asarray(value, var.aval.dtype) for value, var in zip(values, variables, strict=False)]
