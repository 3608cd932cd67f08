"""Base class of compilation stages, with the attributes of `jax.stages`."""

from dataclasses import dataclass
from typing import Any

import jax

from ir_passes.compile.certificate_store import Key
from ir_passes.compile.proving import Certify, Proved
from ir_passes.contract.contract import BoundContract
from ir_passes.files.store import FileStore
from ir_passes.jaxpr.tracing import Trace
from ir_passes.targets import Target


@dataclass(frozen=True)
class ProvedTrace:
    """A traced and proved step with data for later stages.

    Attributes:
        absent_target: machine to compile for that this process does not have.
    """

    trace: Trace
    proved: Proved
    key: Key
    store: FileStore | None
    certify: Certify
    absent_target: Target | None

    @property
    def bound(self) -> BoundContract:
        return self.proved.graph.bound


class Stage:
    """A step at some stage of its compilation.

    Attributes:
        bound: contract, leaf by leaf.
        in_tree, out_tree: structures of (args, kwargs) without static ones, and of results.
        in_avals: argument types, in their tree.
        out_info: result types, as `jax.ShapeDtypeStruct`.
    """

    def __init__(self, trace: Trace, bound: BoundContract):
        self._trace, self.bound = trace, bound
        self.fun_name = trace.name
        self.in_tree = jax.tree.structure((trace.args, trace.kwargs))
        self.out_tree = jax.tree.structure(trace.results)
        self.in_avals = jax.tree.unflatten(self.in_tree, trace.program.in_avals)
        self.out_info = trace.results

    @property
    def args_info(self) -> Any:
        """`jax.stages.ArgInfo` of each argument, as a tree."""
        infos = [
            jax.stages.ArgInfo(aval, leaf in self.bound.successors)
            for leaf, aval in enumerate(self._trace.program.in_avals)
        ]
        return jax.tree.unflatten(self.in_tree, infos)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.fun_name}, lanes={self.bound.lanes})"
