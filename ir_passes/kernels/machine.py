"""The equations of a Pallas kernel's body on arrays: arithmetic, loads and stores."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.primitives import ELEMENTWISE
from ir_passes.kernels import index_terms
from ir_passes.kernels.blocks import BlockGuessFailed, StepPart
from ir_passes.kernels.copies import Copies, Key, Semaphores
from ir_passes.kernels.index_terms import Term
from ir_passes.kernels.memory import MAX_CONSTANT, UnreadableKernel, uninitialized
from ir_passes.kernels.places import Indexer, IndexRange, SelectedBox, is_constant, place_of, places_of, varying_along
from ir_passes.kernels.references import Ref


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
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, ir.Literal) else env[atom]

        used = {atom for eqn in jaxpr.eqns for atom in eqn.invars if not isinstance(atom, ir.Literal)}
        used.update(atom for atom in jaxpr.outvars if not isinstance(atom, ir.Literal))
        self.dead.update(var for eqn in jaxpr.eqns for var in eqn.outvars if var not in used)
        for eqn in jaxpr.eqns:
            with ir.sourced(eqn):
                try:
                    results = self._equation(eqn, [read(atom) for atom in eqn.invars])
                except UnreadableKernel as error:
                    raise error.at(eqn) from None
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
        return [Indexer(tuple(places), tuple(shape)), *rest]

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
