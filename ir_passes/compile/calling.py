"""Calling convention of a flat program: arguments as the function's pytrees, with donated pools.

JAX gives a donated array to the first output of its shape and dtype. Outputs are reordered if a pool would miss its
successor.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from ir_passes.contract.contract import BoundContract
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.placement import result_shardings
from ir_passes.jaxpr.tracing import Trace

Tree = Any


@dataclass(frozen=True)
class Calling:
    """How a step's compiled program is called.

    Attributes:
        name: in HLO and profiles.
        arguments, results: pytree structures of (args, kwargs) and of the results.
        donated: numbers of flattened arguments with successors.
        order: for each compiled result, its position in the program's results.
        argnums: positional arguments to donate; None for partial or keyword donation.
    """

    name: str
    arguments: Tree
    results: Tree
    donated: tuple[int, ...]
    order: tuple[int, ...]
    argnums: tuple[int, ...] | None

    @classmethod
    def of(cls, trace: Trace, bound: BoundContract) -> "Calling":
        donated = tuple(sorted(bound.successors))
        arguments = trace.args, trace.kwargs
        argnums = donated_argnums(*arguments, set(donated))
        structures = jax.tree.structure(arguments), jax.tree.structure(trace.results)
        return cls(trace.name, *structures, donated, output_order(bound), argnums)

    def lower(self, program: ir.ClosedJaxpr, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> jax.stages.Lowered:
        jitted = self.jit(program)
        return jitted.lower(*args, **kwargs) if self.argnums is not None else jitted.lower(*self._leaves(args, kwargs))

    def jit(self, program: ir.ClosedJaxpr) -> Any:
        """Return the program as a jitted function of arguments, or of leaves without `argnums`."""
        run = ir.as_function(program)

        def from_arguments(*args: Any, **kwargs: Any) -> Any:
            return self._arranged(run(*jax.tree.leaves((args, kwargs))))

        def leaves(*args: Any) -> Any:
            return self._arranged(run(*args))

        fn, donated = (leaves, self.donated) if self.argnums is None else (from_arguments, self.argnums)
        fn.__name__ = fn.__qualname__ = self.name
        places = result_shardings(program)
        if None in places:
            return jax.jit(fn, donate_argnums=donated)
        # With an open result sharding, JAX lets XLA pair donated buffers, and XLA compares only their sizes.
        return jax.jit(fn, donate_argnums=donated, out_shardings=self._arranged(places))

    def entry(self, compiled: jax.stages.Compiled) -> Callable[..., Any]:

        def from_leaves(*args: Any, **kwargs: Any) -> Any:
            return compiled(*self._leaves(args, kwargs))

        call = compiled if self.argnums is not None else from_leaves
        return call if self.in_order else lambda *args, **kwargs: self.restored(call(*args, **kwargs))

    @property
    def in_order(self) -> bool:
        return self.order == tuple(range(len(self.order)))

    def compiled_bound(self, bound: BoundContract) -> BoundContract:
        """Return the contract with the compiled program's order of results."""
        successors = {donor: self.order.index(output) for donor, output in bound.successors.items()}
        return replace(bound, outputs=tuple(bound.outputs[i] for i in self.order), successors=successors)

    def _leaves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        leaves, structure = jax.tree.flatten((args, dict(kwargs)))
        if structure != self.arguments:
            raise TypeError(f"{self.name} was compiled for arguments {self.arguments}, got {structure}")
        return leaves

    def _arranged(self, outputs: Sequence[Any]) -> Any:
        if self.in_order:
            return jax.tree.unflatten(self.results, outputs)
        return tuple(outputs[i] for i in self.order)

    def restored(self, leaves: Sequence[Any]) -> Any:
        outputs: list[Any] = [None] * len(leaves)
        for place, leaf in zip(self.order, leaves, strict=True):
            outputs[place] = leaf
        return jax.tree.unflatten(self.results, outputs)


def output_order(bound: BoundContract) -> tuple[int, ...]:
    """Return an order of results that lets JAX pair each pool with its successor."""
    donors: dict[Any, deque[int]] = {}
    for donor in sorted(bound.successors):
        donors.setdefault(_kind(bound.inputs[donor]), deque()).append(bound.successors[donor])
    outputs = enumerate(bound.outputs)
    successor_at = {i: donors[_kind(output)].popleft() for i, output in outputs if donors.get(_kind(output))}
    places = range(len(bound.outputs))
    if all(successor_at.get(i, i) == i for i in places) and len(successor_at) == len(bound.successors):
        return tuple(places)
    first = [bound.successors[donor] for donor in sorted(bound.successors)]
    return (*first, *(i for i in places if i not in set(first)))


def _kind(bound: Any) -> tuple[Any, ...]:
    return bound.shape, bound.dtype


def donated_argnums(args: tuple[Any, ...], kwargs: Mapping[str, Any], donated: set[int]) -> tuple[int, ...] | None:
    """Return positional arguments with donated leaves only; None for partial or keyword donation."""
    numbers: list[int] = []
    first_leaf = 0
    for number, arg in enumerate(args):
        size = jax.tree.structure(arg).num_leaves
        donated_count = sum(i in donated for i in range(first_leaf, first_leaf + size))
        first_leaf += size
        if 0 < donated_count < size:
            return None
        if donated_count:
            numbers.append(number)
    by_name = range(first_leaf, first_leaf + jax.tree.structure(dict(kwargs)).num_leaves)
    return None if donated.intersection(by_name) else tuple(numbers)
