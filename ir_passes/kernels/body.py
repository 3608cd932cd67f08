"""The body of a Pallas kernel as a function of arrays: loads and stores become slices and updates.

More than 300 lines: one interpreter of one language.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ir_passes.jaxpr import ir
from ir_passes.kernels.memory import MAX_UNROLLED, UnreadableKernel, uninitialized, within


class Ref:
    """Memory that a kernel reads and writes.

    Attributes:
        value: what it holds; anything where nothing has been written.
        holes: bool, of the shape of the memory: where nothing has been written; None for nowhere.
        known: whether a read gives what this step finds and writes, or other steps may have written meanwhile.
    """

    def __init__(self, value: Any, holes: np.ndarray | None = None, known: bool = True):
        self.value, self.holes, self.known = value, holes, known

    @classmethod
    def fresh(cls, shape: tuple[int, ...], dtype: Any, known: bool = True) -> "Ref":
        """Memory that nobody has written."""
        return cls(lax.full(shape, 0, dtype), np.ones(shape, bool), known)

    @property
    def has_holes(self) -> bool:
        """Whether there is a place that nothing has been written to."""
        return self.holes is not None and bool(self.holes.any())

    def content(self) -> Any:
        """All of it, to be handed out."""
        return uninitialized(self.value.shape, self.value.dtype) if self.has_holes else self.value

    def load(self, places: "Places") -> Any:
        """Return the elements at a place; anything where one has not been written."""
        found = _taken(self.value, places)
        return uninitialized(found.shape, found.dtype) if not self.known or self._open(places) else found

    def store(self, places: "Places", new: Any, mask: Any = None) -> None:
        """Write to a place, to those elements of it where a mask is true."""
        if mask is not None:
            new = jnp.where(mask, new, _taken(self.value, places))
        elif self.holes is not None and all(map(_static, places)):
            numbers = _taken(np.arange(self.holes.size).reshape(self.holes.shape), places)
            self.holes = self.holes.copy()
            self.holes.reshape(-1)[numbers] = False
        self.value = _stored(self.value, places, new)

    def _open(self, places: "Places") -> bool:
        if not self.has_holes:
            return False
        return not all(map(_static, places)) or bool(np.any(_taken(self.holes, places)))


def run_body(jaxpr: Any, args: Sequence[Any], ids: Sequence[Any], grid: Sequence[int]) -> list[Any]:
    """Run a kernel, or the program of a block's indices: its results are returned, its references changed.

    Args:
        jaxpr: the program.
        args: arrays and `Ref`, one for each of its inputs.
        ids: the number of the step along each grid axis.
        grid: the length of each grid axis.

    Raises:
        UnreadableKernel: it does what has no plain form.
    """
    return _Body(tuple(ids), tuple(grid)).run(jaxpr, (), args)


@dataclass(frozen=True)
class _Body:
    ids: tuple[Any, ...]
    grid: tuple[int, ...]

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, ir.Literal) else env[atom]

        for eqn in jaxpr.eqns:
            with ir.sourced(eqn):
                results = self._equation(eqn, [read(atom) for atom in eqn.invars])
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: ir.JaxprEqn, args: list[Any]) -> Sequence[Any]:
        name, params = eqn.primitive.name, eqn.params
        own = getattr(self, f"_{name}", None)
        if own is not None:
            return own(eqn, args)
        body = ir.body_of(eqn)
        if body is not None:
            return self.run(body.jaxpr, body.consts, args)
        if any(isinstance(one, Ref) for one in args):
            raise UnreadableKernel(f"{name!r} at {ir.source_of(eqn)} has no plain form")
        if args and all(map(is_constant, args)) and not any(ir.shape_of(var) for var in eqn.outvars):
            with jax.ensure_compile_time_eval():
                results = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(params))
                return jax.tree.map(np.asarray, results if eqn.primitive.multiple_results else [results])
        results = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(params))
        return results if eqn.primitive.multiple_results else [results]

    def _program_id(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        return [self.ids[eqn.params["axis"]]]

    def _num_programs(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        return [np.int32(self.grid[eqn.params["axis"]])]

    def _multiple_of(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        return [args[0]]

    _max_contiguous = _multiple_of

    def _get(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        ref, *indexers = args
        return [ref.load(_places(eqn, jax.tree.unflatten(eqn.params["tree"], indexers)))]

    def _swap(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        ref, new, *indexers = args
        return _exchanged(eqn, ref, jax.tree.unflatten(eqn.params["tree"], indexers), new)

    def _addupdate(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        ref, new, *indexers = args
        place = _places(eqn, jax.tree.unflatten(eqn.params["tree"], indexers))
        ref.store(place, lax.add(ref.load(place), new))
        return []

    def _masked_load(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        ref, indexers, mask, other = jax.tree.unflatten(eqn.params["args_tree"], args)
        found = ref.load(_places(eqn, indexers))
        if mask is not None:
            other = uninitialized(found.shape, found.dtype) if other is None else other
            found = jnp.where(mask, found, other)
        return [found]

    def _masked_swap(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        ref, indexers, new, mask = jax.tree.unflatten(eqn.params["args_tree"], args)
        return _exchanged(eqn, ref, indexers, new, mask)

    def _run_scoped(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        if eqn.params.get("collective_axes"):
            raise UnreadableKernel(f"run_scoped over collective axes at {ir.source_of(eqn)}")
        jaxpr = eqn.params["jaxpr"]
        return self.run(jaxpr, args, [Ref.fresh(*memory_of(var.aval)) for var in jaxpr.invars])

    def _cond(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        which, *operands = args
        branches = eqn.params["branches"]
        if is_constant(which):
            chosen = branches[min(max(int(which), 0), len(branches) - 1)]
            return self.run(chosen.jaxpr, chosen.consts, operands)
        memory = _Memory.of(operands)
        left: list[Any] = []

        def branch(one: Any) -> Callable[..., Any]:
            def run(contents: list[Any]) -> Any:
                with memory.holding(contents):
                    results = self.run(one.jaxpr, one.consts, operands)
                    left.append(memory.holes())
                    return results, memory.contents()

            return run

        results, contents = lax.switch(which, [branch(one) for one in branches], memory.contents())
        memory.set(contents, [_either(*holes) for holes in zip(*left, strict=True)])
        return results

    def _scan(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        params, at = eqn.params, ir.source_of(eqn)
        num_consts, num_carry = ir.scan_counts(eqn)
        body, length = ir.closed(params["jaxpr"]), params["length"]
        consts, carry, xs = args[:num_consts], args[num_consts : num_consts + num_carry], args[num_consts + num_carry :]
        memory = _Memory.of(consts)
        if any(isinstance(one, Ref) for one in (*carry, *xs)):
            raise UnreadableKernel(f"a loop that carries references at {at}")
        if (
            length <= MAX_UNROLLED
            and any(ref.has_holes for ref in memory.refs)
            and not xs
            and num_carry == len(eqn.outvars)
        ):
            for _ in range(length):
                carry = self.run(body.jaxpr, body.consts, [*consts, *carry])
            return list(carry)
        left: list[Any] = []

        def step(state: Any, x: Any) -> Any:
            contents, values = state
            with memory.holding(contents):
                results = self.run(body.jaxpr, body.consts, [*consts, *values, *x])
                left.append(memory.holes())
                return (memory.contents(), results[:num_carry]), results[num_carry:]

        first = memory.contents(), _arrays(carry, body.jaxpr.invars[num_consts:])
        (contents, values), ys = lax.scan(step, first, list(xs), length=length, reverse=params["reverse"])
        memory.set(contents, left[-1] if length else memory.holes())
        return [*values, *ys]

    def _while(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        params = eqn.params
        condition, body = params["cond_jaxpr"], params["body_jaxpr"]
        of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
        outer, inner = args[:of_condition], args[of_condition : of_condition + of_body]
        carry = args[of_condition + of_body :]
        if any(isinstance(one, Ref) for one in carry):
            raise UnreadableKernel(f"a loop that carries references at {ir.source_of(eqn)}")
        memory = _Memory.of([*outer, *inner])

        def goes_on(state: Any) -> Any:
            contents, values = state
            with memory.holding(contents):
                return self.run(condition.jaxpr, condition.consts, [*outer, *values])[0]

        def step(state: Any) -> Any:
            contents, values = state
            with memory.holding(contents):
                results = self.run(body.jaxpr, body.consts, [*inner, *values])
                return memory.contents(), results

        first = memory.contents(), _arrays(carry, body.jaxpr.invars[of_body:])
        contents, values = lax.while_loop(goes_on, step, first)
        memory.set(contents, memory.holes())
        return list(values)


class _Memory:
    """The memory that a loop or a branch works on."""

    def __init__(self, refs: Sequence[Ref]):
        self.refs = refs

    @classmethod
    def of(cls, operands: Sequence[Any]) -> "_Memory":
        """The references among some operands, each once."""
        return cls(list({id(one): one for one in operands if isinstance(one, Ref)}.values()))

    def contents(self) -> list[Any]:
        return [ref.value for ref in self.refs]

    def holes(self) -> list[Any]:
        return [ref.holes for ref in self.refs]

    def set(self, contents: Sequence[Any], holes: Sequence[Any]) -> None:
        for ref, content, hole in zip(self.refs, contents, holes, strict=True):
            ref.value, ref.holes = content, hole

    @contextmanager
    def holding(self, contents: Sequence[Any]) -> Iterator[None]:
        """Let the memory hold other contents for a while; what is written meanwhile is undone."""
        before, holes = self.contents(), self.holes()
        self.set(contents, holes)
        yield
        self.set(before, holes)


def _either(*holes: np.ndarray | None) -> np.ndarray | None:
    found = [one for one in holes if one is not None]
    return np.logical_or.reduce(found) if found else None


def _arrays(values: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Values as arrays of the types that a program takes."""
    return [jnp.asarray(value, var.aval.dtype) for value, var in zip(values, variables, strict=False)]


def _exchanged(eqn: ir.JaxprEqn, ref: Ref, indexers: Sequence[Any], new: Any, mask: Any = None) -> list[Any]:
    places = _places(eqn, indexers)
    old = None if isinstance(eqn.outvars[0], ir.DropVar) else ref.load(places)
    ref.store(places, new, mask)
    return [old]


def is_constant(value: Any) -> bool:
    """Whether a value is known now."""
    return isinstance(value, np.generic | np.ndarray | int | float | bool)


def memory_of(aval: Any) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype of a piece of memory.

    Raises:
        UnreadableKernel: it is no array of numbers: a semaphore, a barrier.
    """
    dtype = getattr(aval, "dtype", None)
    if dtype is None or not isinstance(dtype, np.dtype) or "semaphore" in str(aval).lower():
        raise UnreadableKernel(f"it has memory of another kind than arrays: {aval}")
    return tuple(int(size) for size in aval.shape), dtype


@dataclass(frozen=True)
class _Place:
    """One index along a dimension: from `start`, `size` elements; or, where `size` is None, one or an array of them."""

    start: Any
    size: int | None
    stride: int = 1


Places = list[list[_Place]]
"""Indexers, each of what the one before has left."""


def _places(eqn: ir.JaxprEqn, indexers: Sequence[Any]) -> Places:
    found = []
    for indexer in indexers:
        indices = getattr(indexer, "indices", None)
        if indices is None:
            raise UnreadableKernel(f"a reference seen as another one, {type(indexer).__name__}, at {ir.source_of(eqn)}")
        places = []
        for one, full in zip(indices, indexer.shape, strict=True):
            if hasattr(one, "size") and hasattr(one, "start"):
                place = _Place(one.start, int(one.size), int(getattr(one, "stride", 1)))
            else:
                place = _Place(one, None)
            places.append(_checked(place, int(full)))
        if sum(np.ndim(place.start) > 0 for place in places) not in (0, len(places)):
            raise UnreadableKernel(f"arrays of indices beside slices at {ir.source_of(eqn)}")
        found.append(places)
    return found


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


def _taken(value: Any, places: Places) -> Any:
    for place in places:
        value = _taken_once(value, place)
    return value


def _whole(value: Any, places: list[_Place]) -> bool:
    return all(
        isinstance(one.start, int | np.integer) and (one.start, one.size, one.stride) == (0, size, 1)
        for one, size in zip(places, value.shape, strict=True)
    )


def _static(places: list[_Place]) -> bool:
    return all(isinstance(one.start, int | np.integer) for one in places)


def _numpy(place: _Place) -> Any:
    if place.size is None:
        return place.start
    return slice(place.start, place.start + (place.size - 1) * place.stride + 1, place.stride)


def _taken_once(value: Any, places: list[_Place]) -> Any:
    if _whole(value, places):
        return value
    if any(np.ndim(one.start) for one in places):
        return value.at[tuple(one.start for one in places)].get(mode="promise_in_bounds")
    if isinstance(value, np.ndarray):
        return value[tuple(_numpy(one) for one in places)]
    if _static(places):
        ends = [one.start + ((one.size or 1) - 1) * one.stride + 1 for one in places]
        part = lax.slice(value, [one.start for one in places], ends, [one.stride for one in places])
        return lax.squeeze(part, [dim for dim, one in enumerate(places) if one.size is None])
    sizes = [one.size or 1 for one in places]
    part = lax.dynamic_slice(value, _starts(places), sizes, allow_negative_indices=False)
    return lax.squeeze(part, [dim for dim, one in enumerate(places) if one.size is None])


def _stored(value: Any, places: Places, new: Any) -> Any:
    if not places:
        return new
    place, *rest = places
    new = _stored(_taken_once(value, place), rest, new) if rest else new
    if _whole(value, place):
        return new
    if any(np.ndim(one.start) for one in place):
        return value.at[tuple(one.start for one in place)].set(new, mode="promise_in_bounds")
    part = lax.expand_dims(new, [dim for dim, one in enumerate(place) if one.size is None])
    if any(one.stride != 1 for one in place):
        at = [one.start + one.stride * np.arange(one.size or 1) for one in place]
        return value.at[np.ix_(*at)].set(part)
    return lax.dynamic_update_slice(value, part, _starts(place), allow_negative_indices=False)


def _starts(places: list[_Place]) -> list[Any]:
    return [lax.convert_element_type(one.start, jnp.int32) for one in places]
