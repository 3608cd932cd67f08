"""The body of a Pallas kernel as a function of arrays: loads and stores become slices and updates.

More than 300 lines: one interpreter of one language.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ir_passes.jaxpr import ir
from ir_passes.kernels.copies import Copies, Copy, Semaphore, Semaphores
from ir_passes.kernels.memory import MAX_CONSTANT, MAX_UNROLLED, UnreadableKernel, uninitialized, within
from ir_passes.kernels.own_blocks import SCRATCH, NotItsOwn, OwnPart


class Ref:
    """Memory that a kernel reads and writes.

    Attributes:
        value: what it holds; anything where nothing has been written.
        holes: bool, of the shape of the memory: where nothing has been written; None for nowhere.
        known: whether a read gives what this step finds and writes, or other steps may have written meanwhile.
        own: the part of an array that it is; the kernel has the whole array, and counts in it.
        far: whether only copies write to it.
        guessed: whether it is taken for new in each step, because each step writes what it reads of it.
        operand: whether it is an operand's alone: what is written there would be found by others.
    """

    def __init__(
        self, value: Any, holes: np.ndarray | None = None, known: bool = True, own: OwnPart | None = None,
        *, far: bool = False, guessed: bool = False, operand: bool = False,
    ):  # fmt: skip
        self._value, self.holes, self.known, self.own = value, holes, known, own
        self.far, self.guessed, self.operand = far, guessed, operand
        self._pieces: list[tuple[Places, Any]] = []

    @property
    def value(self) -> Any:
        """The array that the reference holds now, with all that was stored."""
        for places, new in self._pieces:
            self._value = _stored(self._value, places, new)
        self._pieces = []
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        self._value, self._pieces = value, []

    @classmethod
    def fresh(cls, shape: tuple[int, ...], dtype: Any, known: bool = True, like: Any = None) -> "Ref":
        """Memory that nobody has written.

        Args:
            shape, dtype: of the memory.
            known: as of `Ref`.
            like: an array that stands where nothing has been written, and is never seen: what is written piece by
                piece then has its order of dimensions. None: zeros.
        """
        return cls(lax.full(shape, 0, dtype) if like is None else like, np.ones(shape, bool), known)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the memory."""
        return tuple(self._value.shape)

    @property
    def has_holes(self) -> bool:
        """Whether there is a place that nothing has been written to."""
        return self.holes is not None and bool(self.holes.any())

    def content(self) -> Any:
        """All of it, to be handed out."""
        return uninitialized(self._value.shape, self._value.dtype) if self.has_holes else self.value

    def load(self, places: "Places") -> Any:
        """Return the elements at a place; anything where one has not been written."""
        if self.known and not self._open(places):
            return _taken(self.value, places)
        if self.guessed:
            raise NotItsOwn(SCRATCH)
        found = _taken(self._value, places)
        return uninitialized(found.shape, found.dtype)

    def store(self, places: "Places", new: Any, mask: Any = None) -> None:
        """Write to a place, to those elements of it where a mask is true."""
        if mask is not None:
            new = jnp.where(mask, new, _taken(self.value, places))
        elif self.holes is not None and all(map(_static, places)):
            numbers = _taken(np.arange(self.holes.size).reshape(self.holes.shape), places)
            self.holes = self.holes.copy()
            self.holes.reshape(-1)[numbers] = False
            # put together when it is read: an array that stands for holes may be read until then
            self._pieces.append((places, new))
            return
        self.value = _stored(self.value, places, new)

    def _open(self, places: "Places") -> bool:
        if not self.has_holes:
            return False
        return not all(map(_static, places)) or bool(np.any(_taken(self.holes, places)))


def run_body(
    jaxpr: Any, args: Sequence[Any], ids: Sequence[Any], grid: Sequence[Any], copies: Copies | None = None
) -> list[Any]:
    """Run a kernel, or the program of a block's indices: its results are returned, its references changed.

    Args:
        jaxpr: the program.
        args: arrays and `Ref`, one for each of its inputs.
        ids: the number of the step along each grid axis.
        grid: the length of each grid axis; an array where it is computed.
        copies: that run beside the program, where the machine has them; none is under way before it or after it.

    Raises:
        UnreadableKernel: it does what has no plain form.
    """
    results = _Body(tuple(ids), tuple(grid), copies=copies).run(jaxpr, (), args)
    if copies is not None:
        copies.check_none("when a step ends")
    return results


@dataclass(frozen=True)
class _Body:
    """A run of a kernel's program.

    Attributes:
        ids, grid: as of `run_body`.
        made: id of an array -> the array, and the operation, operands and number of the result that it comes of.
        copies: that run beside the program; None where the machine has none.
        dead: values that nothing uses.
    """

    ids: tuple[Any, ...]
    grid: tuple[Any, ...]
    made: dict[int, tuple[Any, ir.JaxprEqn, list[Any], int]] = field(default_factory=dict)
    copies: Copies | None = None
    dead: set[Any] = field(default_factory=set)

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
        own = getattr(self, f"_{name}", None)
        if own is not None:
            return own(eqn, args)
        body = ir.body_of(eqn)
        if body is not None:
            return self.run(body.jaxpr, body.consts, args)
        if any(isinstance(one, Ref | Semaphores) for one in args):
            raise UnreadableKernel(f"{name!r} at {ir.source_of(eqn)} has no plain form")
        if args and all(map(is_constant, args)) and not any(ir.shape_of(var) for var in eqn.outvars):
            with jax.ensure_compile_time_eval():
                results = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(params))
                return jax.tree.map(np.asarray, results if eqn.primitive.multiple_results else [results])
        bound = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(params))
        results = bound if eqn.primitive.multiple_results else [bound]
        # JAX gives an operand back where nothing is to do, as of a conversion to its own dtype: it comes of no other
        new = [(k, one) for k, one in enumerate(results) if not any(one is given for given in args)]
        self.made.update({id(one): (one, eqn, args, k) for k, one in new})
        return results

    def constant(self, value: Any) -> Any:
        """Return a value as a number or an array of NumPy if it is known now, else as it is."""
        if is_constant(value) or id(value) not in self.made:
            return value
        _, eqn, args, number = self.made[id(value)]
        if any(np.prod(ir.shape_of(var)) > MAX_CONSTANT for var in eqn.outvars):
            return value
        operands = [self.constant(one) for one in args]
        if not all(map(is_constant, operands)):
            return value
        with jax.ensure_compile_time_eval():
            found = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
            return np.asarray(found[number] if eqn.primitive.multiple_results else found)

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
        """Rotate as `jnp.roll` does, which is how JAX itself defines `pltpu.roll` outside of a TPU."""
        axis, stride = eqn.params["axis"], eqn.params["stride"]
        if stride is None:
            return [jnp.roll(args[0], args[1], axis)]
        along = eqn.params["stride_axis"]
        parts = jnp.split(args[0], args[0].shape[along], along)
        rolled = [jnp.roll(part, args[1] + number * stride, axis) for number, part in enumerate(parts)]
        return [jnp.concatenate(rolled, along)]

    def _get(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        ref, *indexers = args
        return [ref.load(_places(eqn, self._within(ref, jax.tree.unflatten(eqn.params["tree"], indexers))))]

    def _swap(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        ref, new, *indexers = args
        return self._exchanged(eqn, ref, self._within(ref, jax.tree.unflatten(eqn.params["tree"], indexers), True), new)

    def _addupdate(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        ref, new, *indexers = args
        place = _places(eqn, self._within(ref, jax.tree.unflatten(eqn.params["tree"], indexers), True))
        ref.store(place, lax.add(ref.load(place), new))
        return []

    def _masked_load(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        ref, indexers, mask, other = jax.tree.unflatten(eqn.params["args_tree"], args)
        indexers = self._within(ref, indexers)
        box = self._box(indexers, mask, ir.shape_of(eqn.outvars[0]))
        if box is not None:
            return [box.padded(ref.load(box.places), mask, other)]
        found = ref.load(_places(eqn, indexers))
        if mask is not None:
            other = uninitialized(found.shape, found.dtype) if other is None else other
            found = jnp.where(mask, found, other)
        return [found]

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
        places = _places(eqn, indexers)
        old = None if eqn.outvars[0] in self.dead else ref.load(places)
        ref.store(places, new, mask)
        return [old]

    def _within(self, ref: Ref, indexers: Sequence[Any], writes: bool = False, copies: bool = False) -> Sequence[Any]:
        """Return the place in the part that a reference is of the place in the whole array that the kernel names.

        Raises:
            NotItsOwn: it is no place of that part.
        """
        if self.copies is not None:
            self.copies.check(ref, writes)
        if writes and ref.far and not copies:
            raise UnreadableKernel("a store to memory that only copies reach")
        if writes and ref.operand:
            raise UnreadableKernel("a store to an operand whose memory no result takes")
        own = ref.own
        if own is None:
            return indexers
        if not indexers or getattr(indexers[0], "indices", None) is None:
            raise NotItsOwn(own.array)
        first, *rest = indexers
        places, shape = [self._index(one) for one in first.indices], list(first.shape)
        for dim, axis in own.steps.items():
            place, size = places[dim], own.sizes[dim]
            if (place.size or 1, place.stride) != (size, 1) or not self._begins(place.start, axis, size):
                raise NotItsOwn(own.array)
            places[dim], shape[dim] = _Place(0, place.size), size
        return [_Indexer(tuple(places), tuple(shape)), *rest]

    def _begins(self, start: Any, axis: int, size: int) -> bool:
        """Whether an index is the number of a step along a grid axis, times the elements of its part."""
        number = self.ids[axis]
        if is_constant(start) and is_constant(number):
            return np.ndim(start) == 0 and int(start) == int(number) * size
        if start is number:
            return size == 1
        _, eqn, args, _ = self.made.get(id(start), (None, None, [], 0))
        if eqn is None:
            return False
        if eqn.primitive.name == "convert_element_type" and start.dtype in (np.int32, np.int64):
            return self._begins(args[0], axis, size)
        if eqn.primitive.name == "mul":
            times = [int(one) for one in args if is_constant(one) and np.ndim(one) == 0]
            return len(times) == 1 and times[0] == size and any(self._begins(one, axis, 1) for one in args)
        return False

    def _box(self, indexers: Sequence[Any], mask: Any, shape: tuple[int, ...]) -> "_Box | None":
        """Return the part that a mask lets through, where it is known and a box; None if not, or without a mask."""
        known = self.constant(mask)
        if not is_constant(known) or len(indexers) > 1:
            return None
        mask = np.broadcast_to(known, shape)
        bounds = [np.flatnonzero(mask.any(tuple(d for d in range(mask.ndim) if d != dim))) for dim in range(mask.ndim)]
        box = tuple((int(at[0]), int(at[-1]) + 1) for at in bounds if at.size)
        if len(box) < mask.ndim or mask.sum() != np.prod([end - begin for begin, end in box]):
            return None
        indices = [self._index(one) for one in getattr(indexers[0], "indices", ())] if indexers else []
        sizes = indexers[0].shape if indexers else shape
        indices = indices or [_Place(0, size) for size in shape]
        arrays, places, dim = any(np.ndim(one.start) for one in indices), [], 0
        for one in indices:
            if not is_constant(one.start) or (arrays and not np.ndim(one.start)):
                return None
            if one.size is None and not np.ndim(one.start):
                places.append(_Place(int(one.start), None))
                continue
            begin, end = box[dim]
            numbers = np.arange(one.size) * one.stride + one.start if one.size is not None else _along(one.start, dim)
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

    def _index(self, one: Any) -> "_Place":
        place = _place(one)
        return place if place is one else replace(place, start=self.constant(place.start))

    def _dma_start(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        copies, (source, read), (target, written), semaphore = self._copied(eqn, args)
        if eqn.params.get("add"):
            raise UnreadableKernel(f"a copy that adds at {ir.source_of(eqn)}")
        value = source.load(_places(eqn, self._within(source, read)))
        indexers = self._within(target, written, True, copies=True)
        copies.start(Copy(source, target, indexers, semaphore, value))
        return []

    def _dma_wait(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        copies, _, (target, written), semaphore = self._copied(eqn, args)
        done = copies.wait(semaphore, target)
        if not self._same(done.indexers, self._within(target, written, True, copies=True)):
            raise UnreadableKernel(f"a wait for another copy than the one that was started at {ir.source_of(eqn)}")
        places = _places(eqn, done.indexers)
        if done.value.shape != _taken(target.value, places).shape:
            raise UnreadableKernel(f"a copy into another shape at {ir.source_of(eqn)}")
        target.store(places, done.value)
        return []

    def _same(self, one: Sequence[Any], other: Sequence[Any]) -> bool:
        """Whether indexers are the same for certain."""
        if len(one) != len(other):
            return False
        pairs = [
            (self._index(a), self._index(b))
            for x, y in zip(one, other, strict=True)
            for a, b in zip(x.indices, y.indices, strict=True)
        ]
        starts = all(a.start is b.start or (is_constant(a.start) and np.all(a.start == b.start)) for a, b in pairs)
        return starts and all((a.size, a.stride) == (b.size, b.stride) for a, b in pairs)

    def _copied(self, eqn: ir.JaxprEqn, args: list[Any]) -> tuple[Copies, Any, Any, Any]:
        """Return the copies, source and target of one, each a reference and its indexers, and its semaphore."""
        source, target, semaphore, other, device = jax.tree.unflatten(eqn.params["tree"], args)
        if self.copies is None or other is not None or device is not None:
            where = "another device" if device is not None else "a machine that is not said to be a TPU"
            raise UnreadableKernel(f"{eqn.primitive.name} at {ir.source_of(eqn)}: a copy to or on {where}")
        (holder, chosen), sides = _split_ref(semaphore), (_split_ref(source), _split_ref(target))
        numbers = [self.constant(one) for index in chosen for one in getattr(index, "indices", ())]
        if len(chosen) > 1 or not all(is_constant(one) and np.ndim(one) == 0 for one in numbers):
            raise UnreadableKernel(f"{eqn.primitive.name} at {ir.source_of(eqn)}: a semaphore whose index is computed")
        return self.copies, *sides, Semaphore(holder, tuple(map(int, numbers)))

    def _run_scoped(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        if eqn.params.get("collective_axes"):
            raise UnreadableKernel(f"run_scoped over collective axes at {ir.source_of(eqn)}")
        jaxpr = eqn.params["jaxpr"]
        before = [] if self.copies is None else list(self.copies.under_way)
        results = self.run(jaxpr, args, [memory_for(memory_of(var.aval)) for var in jaxpr.invars])
        if self.copies is not None and any(one not in before for one in self.copies.under_way):
            raise UnreadableKernel(f"a copy is under way at the end of run_scoped at {ir.source_of(eqn)}")
        return results

    def _cond(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        which, *operands = args
        branches = eqn.params["branches"]
        if is_constant(which):
            chosen = branches[min(max(int(which), 0), len(branches) - 1)]
            return self.run(chosen.jaxpr, chosen.consts, operands)
        memory = _Memory.of(operands)
        left: list[Any] = []
        self._landed(eqn)

        def branch(one: Any) -> Callable[..., Any]:
            def run(contents: list[Any]) -> Any:
                with memory.holding(contents):
                    results = self.run(one.jaxpr, one.consts, operands)
                    self._landed(eqn)
                    left.append(memory.holes())
                    return results, memory.contents()

            return run

        results, contents = lax.switch(which, [branch(one) for one in branches], memory.contents())
        memory.set(contents, [either(*holes) for holes in zip(*left, strict=True)])
        return results

    def _scan(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        """Run a scan of the body, whose references are carried as arrays."""
        params, at = eqn.params, ir.source_of(eqn)
        num_consts, num_carry = ir.scan_counts(eqn)
        body, length = ir.closed(params["jaxpr"]), params["length"]
        consts, carry, xs = args[:num_consts], args[num_consts : num_consts + num_carry], args[num_consts + num_carry :]
        memory = _Memory.of(consts)
        if any(isinstance(one, Ref) for one in (*carry, *xs)):
            raise UnreadableKernel(f"a loop that carries references at {at}")
        written_out = any(ref.has_holes for ref in memory.refs) or any(
            one.primitive.name in ("masked_load", "masked_swap") for one in ir.all_eqns(body.jaxpr)
        )
        if length <= MAX_UNROLLED and written_out and not xs and num_carry == len(eqn.outvars):
            for _ in range(length):
                carry = self.run(body.jaxpr, body.consts, [*consts, *carry])
            return list(carry)
        left: list[Any] = []
        self._landed(eqn)

        def step(state: Any, x: Any) -> Any:
            contents, values = state
            with memory.holding(contents):
                results = self.run(body.jaxpr, body.consts, [*consts, *values, *x])
                self._landed(eqn)
                left.append(memory.holes())
                return (memory.contents(), results[:num_carry]), results[num_carry:]

        first = memory.contents(), _arrays(carry, body.jaxpr.invars[num_consts:])
        (contents, values), ys = lax.scan(step, first, list(xs), length=length, reverse=params["reverse"])
        memory.set(contents, left[-1] if length else memory.holes())
        return [*values, *ys]

    def _landed(self, eqn: ir.JaxprEqn) -> None:
        """Raise UnreadableKernel if a copy is under way where a loop or a branch begins, or where it ends."""
        if self.copies is not None:
            self.copies.check_none(f"at a loop or branch at {ir.source_of(eqn)}")

    def _while(self, eqn: ir.JaxprEqn, args: list[Any]) -> list[Any]:
        """Run a while loop of the body, whose references are carried as arrays."""
        params = eqn.params
        condition, body = params["cond_jaxpr"], params["body_jaxpr"]
        of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
        outer, inner = args[:of_condition], args[of_condition : of_condition + of_body]
        carry = args[of_condition + of_body :]
        if any(isinstance(one, Ref) for one in carry):
            raise UnreadableKernel(f"a loop that carries references at {ir.source_of(eqn)}")
        memory = _Memory.of([*outer, *inner])
        self._landed(eqn)

        def goes_on(state: Any) -> Any:
            contents, values = state
            with memory.holding(contents):
                return self.run(condition.jaxpr, condition.consts, [*outer, *values])[0]

        def step(state: Any) -> Any:
            contents, values = state
            if counted is not None:  # the number is in these bounds in every iteration: say so
                number, end = counted
                begin = first[1][number]
                last = lax.sub(lax.max(first[1][end], begin), np.ones((), begin.dtype))
                values = [*values[:number], lax.max(lax.min(values[number], last), begin), *values[number + 1 :]]
            with memory.holding(contents):
                results = self.run(body.jaxpr, body.consts, [*inner, *values])
                self._landed(eqn)
                return memory.contents(), results

        first = memory.contents(), _arrays(carry, body.jaxpr.invars[of_body:])
        counted = _counted(condition.jaxpr, of_condition, body.jaxpr, of_body)
        contents, values = lax.while_loop(goes_on, step, first)
        memory.set(contents, memory.holes())
        return list(values)


def _counted(condition: Any, of_condition: int, body: Any, of_body: int) -> tuple[int, int] | None:
    """Return which carried values of a loop are its counter and its end, if it counts up by one to an end.

    Then every iteration has first number <= number < end.
    """
    if len(condition.eqns) != 1 or condition.eqns[0].primitive.name != "lt":
        return None
    (less,) = condition.eqns
    found = [k for atom in less.invars for k, var in enumerate(condition.invars[of_condition:]) if var is atom]
    if len(found) != 2 or condition.outvars != less.outvars:
        return None
    number, end = found
    carried, made = body.invars[of_body:], {var: eqn for eqn in body.eqns for var in eqn.outvars}
    step = made.get(body.outvars[number])
    if step is None or step.primitive.name != "add" or step.invars[0] is not carried[number]:
        return None
    by = step.invars[1]
    by_one = isinstance(by, ir.Literal) and int(by.val) == 1
    return (number, end) if by_one and body.outvars[end] is carried[end] else None


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


def either(*holes: np.ndarray | None) -> np.ndarray | None:
    found = [one for one in holes if one is not None]
    return np.logical_or.reduce(found) if found else None


def _arrays(values: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Values as arrays of the types that a program takes."""
    return [jnp.asarray(value, var.aval.dtype) for value, var in zip(values, variables, strict=False)]


def is_constant(value: Any) -> bool:
    """Whether a value is known now."""
    return isinstance(value, np.generic | np.ndarray | int | float | bool)


def memory_of(aval: Any) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype of a piece of memory; of semaphores of copies the dtype is None.

    Raises:
        UnreadableKernel: it is no array of numbers: another semaphore, a barrier.
    """
    dtype = getattr(aval, "dtype", None)
    if str(dtype) == "dma_sem":
        return tuple(int(size) for size in aval.shape), None
    if dtype is None or not isinstance(dtype, np.dtype) or "semaphore" in str(aval).lower():
        raise UnreadableKernel(f"it has memory of another kind than arrays: {aval}")
    return tuple(int(size) for size in aval.shape), dtype


def memory_for(kind: tuple[tuple[int, ...], Any]) -> Any:
    """New memory, as `memory_of` describes it."""
    shape, dtype = kind
    return Semaphores(shape) if dtype is None else Ref.fresh(shape, dtype)


def _split_ref(ref: Any) -> tuple[Any, list[Any]]:
    """A reference and its indexers."""
    return (ref.ref, list(ref.transforms)) if hasattr(ref, "transforms") else (ref, [])


@dataclass(frozen=True)
class _Place:
    """One index along a dimension: from `start`, `size` elements; or, where `size` is None, one or an array of them."""

    start: Any
    size: int | None
    stride: int = 1


@dataclass(frozen=True)
class _Indexer:
    """Indices of an array of a shape."""

    indices: tuple[_Place, ...]
    shape: tuple[int, ...]


def _place(one: Any) -> _Place:
    """An index as JAX has it, or one of ours."""
    if isinstance(one, _Place):
        return one
    if hasattr(one, "size") and hasattr(one, "start"):
        return _Place(one.start, int(one.size), int(getattr(one, "stride", 1)))
    return _Place(one, None)


Places = list[list[_Place]]
"""Indexers, each of what the one before has left."""


@dataclass(frozen=True)
class _Box:
    """The part of a masked load or store that the mask lets through.

    Attributes:
        places: in the memory, all of them in bounds.
        bounds: begin and end along each dimension of the value.
        shape: of the value.
    """

    places: Places
    bounds: tuple[tuple[int, int], ...]
    shape: tuple[int, ...]

    def of(self, value: Any) -> Any:
        """Return the part of a value."""
        return lax.slice(value, [begin for begin, _ in self.bounds], [end for _, end in self.bounds])

    def padded(self, part: Any, mask: Any, other: Any) -> Any:
        """Return a value of which this is the part, with another value around it, or anything."""
        if part.shape == self.shape:
            return part
        if other is None:
            other = uninitialized(self.shape, part.dtype)
        around = [(begin, size - end, 0) for (begin, end), size in zip(self.bounds, self.shape, strict=True)]
        padded = lax.pad(part, np.zeros((), part.dtype), around)
        return jnp.where(mask, padded, other)


def _along(numbers: Any, dim: int) -> Any:
    """An array that varies along one dimension alone, as one of that dimension; None if it is another."""
    rest = tuple(size for d, size in enumerate(numbers.shape) if d != dim)
    return numbers.reshape(-1) if np.prod(rest) == 1 and numbers.ndim > dim else None


def _places(eqn: ir.JaxprEqn, indexers: Sequence[Any]) -> Places:
    found = []
    for indexer in indexers:
        indices = getattr(indexer, "indices", None)
        if indices is None:
            raise UnreadableKernel(f"a reference seen as another one, {type(indexer).__name__}, at {ir.source_of(eqn)}")
        places = [_checked(_place(one), int(full)) for one, full in zip(indices, indexer.shape, strict=True)]
        arrays = [np.ndim(place.start) > 0 for place in places]
        if (
            any(arrays)
            and not all(arrays)
            and (sum(arrays) > 1 or not all(map(_covers, places, indexer.shape, arrays)))
        ):
            raise UnreadableKernel(f"arrays of indices beside slices at {ir.source_of(eqn)}")
        found.append(places)
    return found


def _covers(place: "_Place", full: int, is_array: bool) -> bool:
    """Whether it is a whole dimension, or an array of indices."""
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


def _numbers(places: list[_Place]) -> tuple[Any, ...]:
    """Arrays of indices, beside whole dimensions."""
    return tuple(one.start if one.size is None else slice(None) for one in places)


def _taken_once(value: Any, places: list[_Place]) -> Any:
    if _whole(value, places):
        return value
    if any(np.ndim(one.start) for one in places):
        return value.at[_numbers(places)].get(mode="promise_in_bounds")
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
        return value.at[_numbers(place)].set(new, mode="promise_in_bounds")
    part = lax.expand_dims(new, [dim for dim, one in enumerate(place) if one.size is None])
    if any(one.stride != 1 for one in place):
        at = [one.start + one.stride * np.arange(one.size or 1) for one in place]
        return value.at[np.ix_(*at)].set(part)
    return lax.dynamic_update_slice(value, part, _starts(place), allow_negative_indices=False)


def _starts(places: list[_Place]) -> list[Any]:
    return [lax.convert_element_type(one.start, jnp.int32) for one in places]
