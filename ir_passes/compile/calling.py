"""The calling convention of a flat program: the arguments of the function it was traced from, its pools donated.

JAX gives a donated array to the first output of its shape and dtype, so outputs are reordered where a pool would not
meet its own successor. The caller sees the function's own arguments and results, and pays nothing for it unless
outputs are reordered or one argument holds both pools that are donated and arrays that are not.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from ir_passes.contract.contract import BoundContract
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.mesh import result_shardings
from ir_passes.jaxpr.tracing import Trace

Tree = Any


@dataclass(frozen=True)
class Calling:
    """The calling convention of one step.

    Attributes:
        name: of the program, in HLO and profiles.
        arguments, results: pytree structures of the function, of the arguments as (args, kwargs).
        donated: flattened arguments whose bytes their successors take.
        order: position in the program's results of each result of the compiled program.
        argnums: arguments to donate; None where an argument would have to be donated in part.
    """

    name: str
    arguments: Tree
    results: Tree
    donated: tuple[int, ...]
    order: tuple[int, ...]
    argnums: tuple[int, ...] | None

    @classmethod
    def of(cls, trace: Trace, bound: BoundContract) -> "Calling":
        """The convention of a traced function with a contract bound to it."""
        donated = tuple(sorted(bound.successors))
        given = trace.args, trace.kwargs
        argnums = donated_argnums(*given, set(donated))
        structures = jax.tree.structure(given), jax.tree.structure(trace.results)
        return cls(trace.name, *structures, donated, output_order(bound), argnums)

    def lower(self, program: ir.ClosedJaxpr, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> jax.stages.Lowered:
        """Lower a program over the flattened arguments, with its pools donated.

        Args:
            args, kwargs: as the function takes them; shardings are taken from them.
        """
        jitted = self.jit(program)
        return jitted.lower(*args, **kwargs) if self.argnums is not None else jitted.lower(*self._leaves(args, kwargs))

    def jit(self, program: ir.ClosedJaxpr) -> Any:
        """The program as a jitted function, of the arguments if whole arguments are donated, else of their leaves."""
        run = ir.as_function(program)

        def whole(*args: Any, **kwargs: Any) -> Any:
            return self._arranged(run(*jax.tree.leaves((args, kwargs))))

        def leaves(*args: Any) -> Any:
            return self._arranged(run(*args))

        fn, donated = (leaves, self.donated) if self.argnums is None else (whole, self.argnums)
        fn.__name__ = fn.__qualname__ = self.name
        places = result_shardings(program)
        if None in places:
            return jax.jit(fn, donate_argnums=donated)
        # Of a result whose place is left open JAX leaves it to XLA whose bytes it takes, and XLA looks at sizes alone.
        return jax.jit(fn, donate_argnums=donated, out_shardings=self._arranged(places))

    def entry(self, compiled: jax.stages.Compiled) -> Callable[..., Any]:
        """Return the callable that takes the function's arguments."""

        def from_leaves(*args: Any, **kwargs: Any) -> Any:
            return compiled(*self._leaves(args, kwargs))

        call = compiled if self.argnums is not None else from_leaves
        return call if self.in_order else lambda *args, **kwargs: self.restored(call(*args, **kwargs))

    @property
    def in_order(self) -> bool:
        """Whether the compiled program's results are the function's, in its order."""
        return self.order == tuple(range(len(self.order)))

    def compiled_bound(self, bound: BoundContract) -> BoundContract:
        """The contract over the compiled program's results, in its order."""
        successors = {donor: self.order.index(output) for donor, output in bound.successors.items()}
        return replace(bound, outputs=tuple(bound.outputs[i] for i in self.order), successors=successors)

    def _leaves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """The flattened arguments."""
        leaves, structure = jax.tree.flatten((args, dict(kwargs)))
        if structure != self.arguments:
            raise TypeError(f"{self.name} was compiled for arguments {self.arguments}, got {structure}")
        return leaves

    def _arranged(self, outputs: Sequence[Any]) -> Any:
        """Return the compiled program's results: those of the function, or a flat tuple of them in another order."""
        if self.in_order:
            return jax.tree.unflatten(self.results, outputs)
        return tuple(outputs[i] for i in self.order)

    def restored(self, leaves: Sequence[Any]) -> Any:
        """The function's results from those of the compiled program."""
        outputs: list[Any] = [None] * len(leaves)
        for place, leaf in zip(self.order, leaves, strict=True):
            outputs[place] = leaf
        return jax.tree.unflatten(self.results, outputs)


def output_order(bound: BoundContract) -> tuple[int, ...]:
    """The order of results in which JAX pairs each donated pool with its own successor."""
    donors: dict[Any, deque[int]] = {}
    for donor in sorted(bound.successors):
        donors.setdefault(_kind(bound.inputs[donor]), deque()).append(bound.successors[donor])
    given = {i: donors[_kind(one)].popleft() for i, one in enumerate(bound.outputs) if donors.get(_kind(one))}
    places = range(len(bound.outputs))
    if all(given.get(i, i) == i for i in places) and len(given) == len(bound.successors):
        return tuple(places)
    first = [bound.successors[donor] for donor in sorted(bound.successors)]
    return (*first, *(i for i in places if i not in set(first)))


def _kind(one: Any) -> tuple[Any, ...]:
    return one.shape, one.dtype


def donated_argnums(args: tuple[Any, ...], kwargs: Mapping[str, Any], donated: set[int]) -> tuple[int, ...] | None:
    """Positional arguments whose arrays are all donated; None where some of one are, or some that are given by name."""
    found: list[int] = []
    at = 0
    for number, arg in enumerate(args):
        size = jax.tree.structure(arg).num_leaves
        mine = sum(i in donated for i in range(at, at + size))
        at += size
        if 0 < mine < size:
            return None
        if mine:
            found.append(number)
    by_name = range(at, at + jax.tree.structure(dict(kwargs)).num_leaves)
    return None if donated.intersection(by_name) else tuple(found)
