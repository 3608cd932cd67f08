"""The types of a step's arguments and results, under their names in `jax.stages`."""

from dataclasses import dataclass
from typing import Any

import jax

from ir_passes.compile.certificate_store import CertificateStore, Key
from ir_passes.compile.proving import Certify, Proved
from ir_passes.contract.contract import BoundContract
from ir_passes.jaxpr.tracing import Trace
from ir_passes.targets import Target


@dataclass(frozen=True)
class ProvedTrace:
    """A traced and proved step, with the data of earlier stages for later ones.

    Attributes:
        key, store: key of its certificate, and its store; None for no store.
        absent_target: absent machine that the step is compiled for; None for a present machine.
    """

    trace: Trace
    proved: Proved
    key: Key
    store: CertificateStore | None
    certify: Certify
    absent_target: Target | None

    @property
    def bound(self) -> BoundContract:
        """The contract, leaf by leaf."""
        return self.proved.graph.bound


class Stage:
    """A step at some stage of its compilation.

    Attributes:
        fun_name: name of the function.
        bound: the contract, leaf by leaf.
        in_tree, out_tree: structures of (args, kwargs), without the static ones, and of the results.
        in_avals: types of the arguments, in their tree.
        out_info: the same of the results, as `jax.ShapeDtypeStruct`.
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
        """`jax.stages.ArgInfo` of each argument, in their tree: its type, and whether it is donated."""
        infos = [
            jax.stages.ArgInfo(aval, leaf in self.bound.successors)
            for leaf, aval in enumerate(self._trace.program.in_avals)
        ]
        return jax.tree.unflatten(self.in_tree, infos)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.fun_name}, lanes={self.bound.lanes})"
