"""The body of a Pallas kernel as a function of arrays.

More than 300 lines: one interpreter of one language.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.bodies import counting_loop
from ir_passes.kernels import index_terms
from ir_passes.kernels.blocks import SCRATCH, BlockGuessFailed, StepPart
from ir_passes.kernels.copies import Copies, Copy, Key, Loop, Semaphore, Semaphores
from ir_passes.kernels.index_terms import Term
from ir_passes.kernels.memory import MAX_CONSTANT, MAX_UNROLLED, UnreadableKernel, uninitialized, within


class Ref:
    """Memory of a kernel.

    Attributes:
        value: the content; anything at unwritten places.
        holes: bool, of the shape of the memory: unwritten places; None for no such place.
        private: False if other steps may write meanwhile, so that the content of a read is unknown.
        part: the part of an array that this memory is, if the kernel indexes the whole array.
        copies_only: True if only copies write to it.
        assumed_new: True if it is unwritten in each step by assumption, because every step writes before it reads.
        operand: True for an operand without an aliased result: it is not written.
        written: places with computed indices that have been written.
    """

    def __init__(
        self, value: Any, holes: np.ndarray | None = None, private: bool = True, part: StepPart | None = None,
        *, copies_only: bool = False, assumed_new: bool = False, operand: bool = False,
    ):  # fmt: skip
        self._value, self.holes, self.private, self.part = value, holes, private, part
        self.copies_only, self.assumed_new, self.operand = copies_only, assumed_new, operand
        self._pieces: list[tuple[Places, Any]] = []
        self.written: set[Key] = set()

    @property
    def value(self) -> Any:
        """The content, with all stores."""
        for places, new in self._pieces:
            self._value = _write(self._value, places, new)
        self._pieces = []
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        self._value, self._pieces = value, []

    @classmethod
    def fresh(cls, shape: tuple[int, ...], dtype: Any, private: bool = True, like: Any = None) -> "Ref":
        """Return unwritten memory.

        Args:
            shape, dtype: of the memory.
            private: as in `Ref`.
            like: an array for the unwritten places, never read: memory that is written piece by piece then has its
                order of dimensions. None: zeros.
        """
        return cls(lax.full(shape, 0, dtype) if like is None else like, np.ones(shape, bool), private)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._value.shape)

    @property
    def has_holes(self) -> bool:
        return self.holes is not None and bool(self.holes.any())

    def content(self) -> Any:
        return uninitialized(self._value.shape, self._value.dtype) if self.has_holes else self.value

    def load(self, places: "Places", key: Key | None = None) -> Any:
        """Return the elements at a place; anything if one is unwritten."""
        if self.private and (self._is_written(key) or not self._open(places)):
            return _read(self.value, places)
        if self.assumed_new:
            raise BlockGuessFailed(SCRATCH)
        elements = _read(self._value, places)
        return uninitialized(elements.shape, elements.dtype)

    def _is_written(self, key: Key | None) -> bool:
        """Whether a place is in one that has been written."""
        bounds = [(index_terms.constant(0), size, 1) for size in self.shape]
        return bool(key) and any(
            len(place) == 1
            and all(w in (part, all_of) for w, part, all_of in zip(place[0], key[0], bounds, strict=True))
            for place in self.written
        )

    def store(self, places: "Places", new: Any, mask: Any = None, key: Key | None = None) -> None:
        """Write to a place, to the elements with a true mask."""
        if mask is not None:
            new = jnp.where(mask, new, _read(self.value, places))
        elif key is not None and not all(map(_static, places)):
            self.written.add(key)
        elif self.holes is not None and all(map(_static, places)):
            numbers = _read(np.arange(self.holes.size).reshape(self.holes.shape), places)
            self.holes = self.holes.copy()
            self.holes.reshape(-1)[numbers] = False
            # assembled by the next read: until then the array for unwritten places may be read
            self._pieces.append((places, new))
            return
        self.value = _write(self.value, places, new)

    def _open(self, places: "Places") -> bool:
        if not self.has_holes:
            return False
        return not all(map(_static, places)) or bool(np.any(_read(self.holes, places)))


def run_body(
    jaxpr: Any, args: Sequence[Any], ids: Sequence[Any], grid: Sequence[Any], copies: Copies | None = None
) -> list[Any]:
    """Run a kernel's body, or an index map; return its results, and change its references.

    Args:
        jaxpr: the program.
        args: an array or `Ref` for each of its inputs.
        ids: number of the step along each grid axis.
        grid: length of each grid axis; an array for a computed length.
        copies: running copies, if the machine has them; empty before and after.

    Raises:
        UnreadableKernel: no plain form.
    """
    body = _Body(tuple(ids), tuple(grid), copies=copies)
    if copies is not None:
        steps = {body.term(step): range(length) for step, length in zip(ids, grid, strict=True) if is_constant(length)}
        copies.domains.update({term: numbers for term, numbers in steps.items() if term.constant is None})
    results = body.run(jaxpr, (), args)
    if copies is not None:
        copies.check_none("when a step ends")
    return results


@dataclass(frozen=True)
class _Body:
    """A run of a kernel's program.

    Attributes:
        ids, grid: as in `run_body`.
        producers: id of an array -> the array, its equation, the operands and the number of the result.
        copies: the running copies; None on a machine without them.
        dead: unused variables.
        terms: id of a value -> the value and its term.
        counted: term of a loop's counter -> term of its end, the first counter and the last one.
    """

    ids: tuple[Any, ...]
    grid: tuple[Any, ...]
    producers: dict[int, tuple[Any, ir.JaxprEqn, list[Any], int]] = field(default_factory=dict)
    copies: Copies | None = None
    dead: set[Any] = field(default_factory=set)
    terms: dict[int, tuple[Any, Term]] = field(default_factory=dict)
    counted: dict[Term, tuple[Term, Any, Any]] = field(default_factory=dict)

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, ir.Literal) else env[atom]

        used = {atom for eqn in jaxpr.eqns for atom in eqn.invars if not isinstance(atom, ir.Literal)}
        used.update(atom for atom in jaxpr.outvars if not isinstance(atom, ir.Literal))
        self.dead.update(var for eqn in jaxpr.eqns for var in eqn.outvars if var not in used)
        for eqn in jaxpr.eqns:
            with ir.sourced(eqn):
                results = self._equation(eqn, [read(atom) for atom in eqn.invars])
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        name, params = eqn.primitive.name, eqn.params
        method = getattr(self, f"_{name}", None)
        if method is not None:
            return method(eqn, args)
        body = ir.body_of(eqn)
        if body is not None:
            return self.run(body.jaxpr, body.consts, args)
        if any(isinstance(arg, Ref | Semaphores) for arg in args):
            raise UnreadableKernel(f"{name!r} at {ir.source_of(eqn)} has no plain form")
        if args and all(map(is_constant, args)) and not any(ir.shape_of(var) for var in eqn.outvars):
            with jax.ensure_compile_time_eval():
                results = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(params))
                return jax.tree.map(np.asarray, results if eqn.primitive.multiple_results else [results])
        bound = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(params))
        results = bound if eqn.primitive.multiple_results else [bound]
        # JAX returns an operand itself if there is nothing to do, as in a conversion to its dtype
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
        with jax.ensure_compile_time_eval():
            results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
            return np.asarray(results[number] if eqn.primitive.multiple_results else results)

    def term(self, value: Any) -> Term:
        if is_constant(value) and np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iub":
            return index_terms.constant(value)
        if id(value) not in self.terms:
            _, eqn, args, _ = self.producers.get(id(value), (None, None, [], 0))
            is_operation = eqn is not None and index_terms.is_operation(eqn)
            term = index_terms.operation(eqn, list(map(self.term, args))) if is_operation else None
            self.terms[id(value)] = value, term or index_terms.unknown(id(value))
        return self.terms[id(value)][1]

    def _key(self, indexers: Sequence[Any]) -> Key:
        places = [[_place(index) for index in getattr(indexer, "indices", ())] for indexer in indexers]
        return tuple(tuple((self.term(place.start), place.size, place.stride) for place in part) for part in places)

    def _loaded(self, eqn: ir.JaxprEqn, ref: Ref, indexers: Sequence[Any]) -> Any:
        """Return the elements at a place.

        Two loads of a number without writes are equal terms.
        """
        key = self._key(indexers)
        elements = ref.load(_places(eqn, indexers), key)
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
        ref.store(_places(eqn, indexers), lax.add(self._loaded(eqn, ref, indexers), new), None, self._key(indexers))
        return []

    def _masked_load(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        ref, indexers, mask, other = jax.tree.unflatten(eqn.params["args_tree"], args)
        indexers = self._within(ref, indexers)
        box = self._box(indexers, mask, ir.shape_of(eqn.outvars[0]))
        if box is not None:
            return [box.padded(ref.load(box.places), mask, other)]
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
            ref.store(box.places, box.of(new))
            return [old]
        return self._exchanged(eqn, ref, indexers, new, mask)

    def _exchanged(self, eqn: ir.JaxprEqn, ref: Ref, indexers: Sequence[Any], new: Any, mask: Any = None) -> list[Any]:
        places, key = _places(eqn, indexers), self._key(indexers)
        old = None if eqn.outvars[0] in self.dead else ref.load(places, key)
        ref.store(places, new, mask, key)
        return [old]

    def _within(self, ref: Ref, indexers: Sequence[Any], writes: bool = False, copies: bool = False) -> Sequence[Any]:
        """Return indexers into the part of the array that the reference is.

        Raises:
            BlockGuessFailed: another place of the array.
        """
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
            places[dim], shape[dim] = _Place(0, place.size), size
        return [SimpleNamespace(indices=tuple(places), shape=tuple(shape)), *rest]

    def _begins(self, start: Any, axis: int, size: int) -> bool:
        """Whether an index is the number of a step along a grid axis, times `size`."""
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

    def _box(self, indexers: Sequence[Any], mask: Any, shape: tuple[int, ...]) -> "_Box | None":
        """Return the selected part of a known mask if it is a box, else None."""
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
        indices = indices or [_Place(0, size) for size in shape]
        arrays, places, dim = any(np.ndim(index.start) for index in indices), [], 0
        for index in indices:
            if not is_constant(index.start) or (arrays and not np.ndim(index.start)):
                return None
            if index.size is None and not np.ndim(index.start):
                places.append(_Place(int(index.start), None))
                continue
            begin, end = box[dim]
            size, start = index.size, index.start
            numbers = _along(start, dim) if size is None else np.arange(size) * index.stride + start
            if numbers is None:
                return None
            numbers = np.broadcast_to(numbers, shape[dim : dim + 1])[begin:end]
            places.append(_Place(int(numbers[0]), end - begin))
            if np.any(np.diff(numbers) != 1):
                return None
            dim += 1
        if dim < len(shape) or not all(
            0 <= p.start <= size - (p.size or 1) for p, size in zip(places, sizes, strict=True)
        ):
            return None
        return _Box([places], box, shape)

    def _index(self, index: Any) -> "_Place":
        place = _place(index)
        return place if place is index else replace(place, start=self.constant(place.start))

    def _dma_start(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        copies, (source, read), (target, written), semaphore = self._copied(eqn, args)
        if eqn.params.get("add"):
            raise UnreadableKernel(f"a copy that adds at {ir.source_of(eqn)}")
        read = self._within(source, read)
        value = source.load(_places(eqn, read), self._key(read))
        written = self._within(target, written, True, copies=True)
        copies.start(Copy(source, target, self._key(read), self._key(written), semaphore, value))
        return []

    def _dma_wait(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        copies, (source, read), (target, written), semaphore = self._copied(eqn, args)
        read, written = self._in_part(source.part, read), self._in_part(target.part, written)
        named = Copy(source, target, self._key(read), self._key(written), semaphore, None)
        copy = copies.wait(named)
        value, places = copy.value, _places(eqn, self._within(target, written, True, copies=True))
        if value is None:
            if not copies.are_same(copy, named, ("read",)):
                raise UnreadableKernel(f"a wait for a copy of another source at {ir.source_of(eqn)}")
            value = source.load(_places(eqn, self._within(source, read)), named.read)
        if value.shape != _read(target.value, places).shape:
            raise UnreadableKernel(f"a copy into another shape at {ir.source_of(eqn)}")
        target.store(places, value, None, named.written)
        return []

    def _copied(self, eqn: ir.JaxprEqn, args: list[Any]) -> tuple[Copies, Any, Any, Any]:
        """Return copies, source, target and semaphore; source and target with indexers."""
        source, target, semaphore, other, device = jax.tree.unflatten(eqn.params["tree"], args)
        if self.copies is None or other is not None or device is not None:
            place = "another device" if device is not None else "a machine that is not said to be a TPU"
            raise UnreadableKernel(f"{eqn.primitive.name} at {ir.source_of(eqn)}: a copy to or on {place}")
        (semaphores, indexers), sides = _split_ref(semaphore), (_split_ref(source), _split_ref(target))
        places = [_place(index) for indexer in indexers for index in getattr(indexer, "indices", ())]
        index = tuple(self.term(place.start) for place in places)
        domains, shape = self.copies.domains, semaphores.shape
        is_bounded = self.copies.missing is not None or all(
            index_terms.in_bounds(term, size, domains) for term, size in zip(index, shape, strict=False)
        )
        if len(index) != len(shape) or any(place.size not in (None, 1) for place in places) or not is_bounded:
            raise UnreadableKernel(
                f"{eqn.primitive.name} at {ir.source_of(eqn)}: a semaphore whose index is not shown to be in bounds"
            )
        return self.copies, *sides, Semaphore(semaphores, index)

    def _run_scoped(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        if eqn.params.get("collective_axes"):
            raise UnreadableKernel(f"run_scoped over collective axes at {ir.source_of(eqn)}")
        jaxpr = eqn.params["jaxpr"]
        outer = [] if self.copies is None else list(self.copies.running)
        results = self.run(jaxpr, args, [memory_for(memory_of(var.aval)) for var in jaxpr.invars])
        if self.copies is not None and any(copy not in outer for copy in self.copies.running):
            raise UnreadableKernel(f"a copy is under way at the end of run_scoped at {ir.source_of(eqn)}")
        return results

    def _cond(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        predicate, *operands = args
        branches = eqn.params["branches"]
        if is_constant(predicate):
            only = branches[min(max(int(predicate), 0), len(branches) - 1)]
            return self.run(only.jaxpr, only.consts, operands)
        memory = _Memory.of(operands)
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
        """State the bounds of a counter in a branch for all iterations but the last."""
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
        """Run a scan; references of its body are carried as arrays."""
        params, line = eqn.params, ir.source_of(eqn)
        num_consts, num_carry = ir.scan_counts(eqn)
        body, length = ir.closed(params["jaxpr"]), params["length"]
        consts, carry, xs = args[:num_consts], args[num_consts : num_consts + num_carry], args[num_consts + num_carry :]
        memory = _Memory.of(consts)
        if any(isinstance(value, Ref) for value in (*carry, *xs)):
            raise UnreadableKernel(f"a loop that carries references at {line}")
        names = {inner.primitive.name for inner in ir.all_eqns(body.jaxpr)}
        unrolls = any(ref.has_holes for ref in memory.refs) or bool(names & {"masked_load", "masked_swap", *_COPYING})
        if length <= MAX_UNROLLED and unrolls and not xs and num_carry == len(eqn.outvars):
            for _ in range(length):
                carry = self.run(body.jaxpr, body.consts, [*consts, *carry])
            return list(carry)
        holes_after: list[Any] = []
        running = self._running(eqn)

        def step(state: Any, x: Any) -> Any:
            contents, values = state
            with memory.holding(contents):
                results = self.run(body.jaxpr, body.consts, [*consts, *values, *x])
                self._check_running(running, eqn)
                holes_after.append(memory.holes())
                return (memory.contents(), results[:num_carry]), results[num_carry:]

        first = memory.contents(), _arrays(carry, body.jaxpr.invars[num_consts:])
        (contents, values), ys = lax.scan(step, first, list(xs), length=length, reverse=params["reverse"])
        memory.set(contents, holes_after[-1] if length else memory.holes())
        return [*values, *ys]

    def _running(self, eqn: ir.JaxprEqn) -> list[Copy]:
        """Return the copies that run around a loop."""
        return [] if self.copies is None else list(self.copies.running)

    def _check_running(self, running: list[Copy], eqn: ir.JaxprEqn) -> None:
        """Raise UnreadableKernel if an iteration has started or waited for a copy."""
        if self.copies is not None and self.copies.running != running:
            raise UnreadableKernel(f"a copy is under way at the end of an iteration at {ir.source_of(eqn)}")

    def _while(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        """Run a while loop; references of its body are carried as arrays."""
        params = eqn.params
        condition, body = params["cond_jaxpr"], params["body_jaxpr"]
        num_condition, num_body = params["cond_nconsts"], params["body_nconsts"]
        outer, inner = args[:num_condition], args[num_condition : num_condition + num_body]
        carry = args[num_condition + num_body :]
        if any(isinstance(value, Ref) for value in carry):
            raise UnreadableKernel(f"a loop that carries references at {ir.source_of(eqn)}")
        memory = _Memory.of([*outer, *inner])
        names = {inner.primitive.name for inner in ir.all_eqns(body.jaxpr)}
        copies = self.copies if self.copies is not None and names & set(_COPYING) else None
        first = memory.contents(), _arrays(carry, body.jaxpr.invars[num_body:])
        carried, counting = condition.jaxpr.invars[num_condition:], counting_loop(eqn)
        counted = (counting[0], carried.index(counting[1])) if counting and counting[1] in carried else None
        is_unchanged = [out is var for out, var in zip(body.jaxpr.outvars, body.jaxpr.invars[num_body:], strict=True)]
        loop_key = object()
        numbers = [index_terms.unknown((loop_key, k)) for k in range(len(carry))]
        terms = [self.term(value) if is_unchanged[k] else numbers[k] for k, value in enumerate(carry)]
        loop = Loop(copies or Copies(), numbers, list(map(self.term, carry)))
        running = self._running(eqn)

        def goes_on(state: Any) -> Any:
            contents, values = state
            with memory.holding(contents):
                return self.run(condition.jaxpr, condition.consts, [*outer, *values])[0]

        def iteration(values: list[Any]) -> list[Any]:
            if counted is not None:  # state the bounds of the counter in every iteration
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
                    self._check_running(running, eqn)
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


_COPYING = ("dma_start", "dma_wait")


class _Memory:
    """The memory of a loop or a branch."""

    def __init__(self, refs: Sequence[Ref]):
        self.refs = refs

    @classmethod
    def of(cls, operands: Sequence[Any]) -> "_Memory":
        """Return the references of some operands, each once."""
        return cls(list({id(ref): ref for ref in operands if isinstance(ref, Ref)}.values()))

    def contents(self) -> list[Any]:
        return [ref.value for ref in self.refs]

    def holes(self) -> list[Any]:
        return [ref.holes for ref in self.refs]

    def set(self, contents: Sequence[Any], holes: Sequence[Any]) -> None:
        for ref, content, hole in zip(self.refs, contents, holes, strict=True):
            ref.value, ref.holes = content, hole

    @contextmanager
    def holding(self, contents: Sequence[Any]) -> Iterator[None]:
        """Run a block with other contents; undo its writes."""
        contents_outside, holes, written = self.contents(), self.holes(), [set(ref.written) for ref in self.refs]
        self.set(contents, holes)
        yield
        self.set(contents_outside, holes)
        for ref, places in zip(self.refs, written, strict=True):
            ref.written = places


def union(*holes: np.ndarray | None) -> np.ndarray | None:
    """Return the union of masks; None for only empty ones."""
    masks = [mask for mask in holes if mask is not None]
    return np.logical_or.reduce(masks) if masks else None


def _arrays(values: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Return values as arrays of the dtypes of a program's inputs."""
    return [jnp.asarray(value, var.aval.dtype) for value, var in zip(values, variables, strict=False)]


def is_constant(value: Any) -> bool:
    return isinstance(value, np.generic | np.ndarray | int | float | bool)


def memory_of(aval: Any) -> tuple[tuple[int, ...], Any]:
    """Return shape and dtype of memory; dtype None for semaphores of copies.

    Raises:
        UnreadableKernel: no array of numbers, for example another semaphore or a barrier.
    """
    dtype = getattr(aval, "dtype", None)
    if str(dtype) == "dma_sem":
        return tuple(int(size) for size in aval.shape), None
    if dtype is None or not isinstance(dtype, np.dtype) or "semaphore" in str(aval).lower():
        raise UnreadableKernel(f"it has memory of another kind than arrays: {aval}")
    return tuple(int(size) for size in aval.shape), dtype


def memory_for(kind: tuple[tuple[int, ...], Any]) -> Any:
    """Return new memory of a shape and dtype from `memory_of`."""
    shape, dtype = kind
    return Semaphores(shape) if dtype is None else Ref.fresh(shape, dtype)


def _split_ref(ref: Any) -> tuple[Any, list[Any]]:
    return (ref.ref, list(ref.transforms)) if hasattr(ref, "transforms") else (ref, [])


@dataclass(frozen=True)
class _Place:
    """`size` elements from `start` along a dimension; size None: an index or an array."""

    start: Any
    size: int | None
    stride: int = 1


def _place(index: Any) -> _Place:
    if isinstance(index, _Place):
        return index
    if hasattr(index, "size") and hasattr(index, "start"):
        return _Place(index.start, int(index.size), int(getattr(index, "stride", 1)))
    return _Place(index, None)


Places = list[list[_Place]]
"""Indexers, each into the result of the one before."""


@dataclass(frozen=True)
class _Box:
    """The selected part of a masked load or store.

    Attributes:
        places: in the memory, in bounds.
        bounds: start and end along each dimension of the value.
        shape: of the value.
    """

    places: Places
    bounds: tuple[tuple[int, int], ...]
    shape: tuple[int, ...]

    def of(self, value: Any) -> Any:
        return lax.slice(value, [begin for begin, _ in self.bounds], [end for _, end in self.bounds])

    def padded(self, part: Any, mask: Any, other: Any) -> Any:
        """Return a value with this selected part, and `other` (None: anything) elsewhere."""
        if part.shape == self.shape:
            return part
        if other is None:
            other = uninitialized(self.shape, part.dtype)
        around = [(begin, size - end, 0) for (begin, end), size in zip(self.bounds, self.shape, strict=True)]
        padded = lax.pad(part, np.zeros((), part.dtype), around)
        return jnp.where(mask, padded, other)


def _along(numbers: Any, dim: int) -> Any:
    """Return an array that varies along one dimension only as 1-D; None for another array."""
    rest = tuple(size for d, size in enumerate(numbers.shape) if d != dim)
    return numbers.reshape(-1) if np.prod(rest) == 1 and numbers.ndim > dim else None


def _places(eqn: ir.JaxprEqn, indexers: Sequence[Any]) -> Places:
    all_places = []
    for indexer in indexers:
        indices = getattr(indexer, "indices", None)
        if indices is None:
            raise UnreadableKernel(f"a reference seen as another one, {type(indexer).__name__}, at {ir.source_of(eqn)}")
        places = [_checked(_place(index), int(full)) for index, full in zip(indices, indexer.shape, strict=True)]
        arrays = [np.ndim(place.start) > 0 for place in places]
        if (
            any(arrays)
            and not all(arrays)
            and (sum(arrays) > 1 or not all(map(_covers, places, indexer.shape, arrays)))
        ):
            raise UnreadableKernel(f"arrays of indices beside slices at {ir.source_of(eqn)}")
        all_places.append(places)
    return all_places


def _covers(place: "_Place", full: int, is_array: bool) -> bool:
    """Whether an index is the whole dimension, or an array of indices."""
    return is_array or (isinstance(place.start, int) and (place.start, place.size, place.stride) == (0, full, 1))


def _checked(place: _Place, full: int) -> _Place:
    if is_constant(place.start) and np.ndim(place.start) == 0:
        place = _Place(int(place.start), place.size, place.stride)
    last = ((place.size or 1) - 1) * place.stride
    if isinstance(place.start, int) and 0 <= place.start < full - last:
        return place
    if place.stride != 1:
        raise UnreadableKernel("a computed slice with a stride")
    start = jnp.asarray(place.start)
    return _Place(within(start, full - (place.size or 1) + 1), place.size)


def _read(value: Any, places: Places) -> Any:
    for indices in places:
        value = _read_once(value, indices)
    return value


def _whole(value: Any, indices: list[_Place]) -> bool:
    return all(
        isinstance(place.start, int | np.integer) and (place.start, place.size, place.stride) == (0, size, 1)
        for place, size in zip(indices, value.shape, strict=True)
    )


def _static(indices: list[_Place]) -> bool:
    return all(isinstance(place.start, int | np.integer) for place in indices)


def _numpy(place: _Place) -> Any:
    if place.size is None:
        return place.start
    return slice(place.start, place.start + (place.size - 1) * place.stride + 1, place.stride)


def _numbers(indices: list[_Place]) -> tuple[Any, ...]:
    """Return arrays of indices, and slices for whole dimensions."""
    return tuple(place.start if place.size is None else slice(None) for place in indices)


def _read_once(value: Any, indices: list[_Place]) -> Any:
    if _whole(value, indices):
        return value
    if any(np.ndim(place.start) for place in indices):
        return value.at[_numbers(indices)].get(mode="promise_in_bounds")
    if isinstance(value, np.ndarray):
        return value[tuple(map(_numpy, indices))]
    if _static(indices):
        ends = [place.start + ((place.size or 1) - 1) * place.stride + 1 for place in indices]
        part = lax.slice(value, [place.start for place in indices], ends, [place.stride for place in indices])
    else:
        sizes = [place.size or 1 for place in indices]
        part = lax.dynamic_slice(value, _starts(indices), sizes, allow_negative_indices=False)
    return lax.squeeze(part, _scalar_dims(indices))


def _write(value: Any, places: Places, new: Any) -> Any:
    if not places:
        return new
    indices, *rest = places
    new = _write(_read_once(value, indices), rest, new) if rest else new
    if _whole(value, indices):
        return new
    if any(np.ndim(place.start) for place in indices):
        return value.at[_numbers(indices)].set(new, mode="promise_in_bounds")
    part = lax.expand_dims(new, _scalar_dims(indices))
    if any(place.stride != 1 for place in indices):
        positions = [place.start + place.stride * np.arange(place.size or 1) for place in indices]
        return value.at[np.ix_(*positions)].set(part)
    return lax.dynamic_update_slice(value, part, _starts(indices), allow_negative_indices=False)


def _scalar_dims(indices: list[_Place]) -> list[int]:
    return [dim for dim, place in enumerate(indices) if place.size is None]


def _starts(indices: list[_Place]) -> list[Any]:
    return [lax.convert_element_type(place.start, jnp.int32) for place in indices]
