"""A Pallas kernel's body as a function of arrays: copies, branches and loops."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.bodies import counting_loop
from ir_passes.kernels import index_terms
from ir_passes.kernels.copies import Copies, Copy, Loop, Semaphores
from ir_passes.kernels.machine import KernelRun
from ir_passes.kernels.memory import MAX_UNROLLED, UnreadableKernel
from ir_passes.kernels.places import is_constant, place_of, places_of, read_at
from ir_passes.kernels.references import HeldMemory, Ref, memory_for, memory_of, split_reference, union
from ir_passes.kernels.unread_texts import other_machine

COPYING = ("dma_start", "dma_wait")


@dataclass(frozen=True)
class Visit:
    """A step of a grid axis after the first, and its computed block.

    Attributes:
        index_map, dims: of the block; its indices along these dimensions are computed.
        stays: True if the step before has the same block, False if it has another one.
    """

    index_map: Any
    dims: tuple[int, ...]
    axis: int
    stays: bool

    def state(self, body: KernelRun, ids: Sequence[Any], scalars: Sequence[Any]) -> None:
        """State the relation of the indices in this step and in the one before."""
        difference = jax.make_jaxpr(lambda number: lax.sub(number, np.int32(1)))(np.int32(0))
        (previous,) = body.run(difference.jaxpr, difference.consts, [ids[self.axis]])
        previous_ids = *ids[: self.axis], previous, *ids[self.axis + 1 :]
        pairs = []
        for steps in (ids, previous_ids):
            indices = body.run(self.index_map, (), [*steps, *scalars])
            pairs.append([body.term(indices[dim]) for dim in self.dims])
        if self.stays or len(self.dims) == 1:  # otherwise any of the indices may differ
            body.compared.update(dict.fromkeys(zip(*pairs, strict=True), self.stays))


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
    body = _Body(tuple(ids), tuple(grid), copies=copies)
    facts(body)
    if copies is not None:
        steps = {body.term(step): range(length) for step, length in zip(ids, grid, strict=True) if is_constant(length)}
        copies.domains.update({term: numbers for term, numbers in steps.items() if term.constant is None})
    results = body.run(jaxpr, (), args)
    if copies is not None and copies.running:
        raise UnreadableKernel("a copy is under way when a step ends")
    return results


class _Body(KernelRun):
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


def arrays_of(values: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Return arrays with the dtypes of a program's inputs."""
    return [jnp.asarray(value, var.aval.dtype) for value, var in zip(values, variables, strict=False)]
