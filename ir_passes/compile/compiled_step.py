"""A compiled step with its certificate."""

from functools import cached_property, partial
from typing import Any, Literal

import jax

from ir_passes.compile.buffer_assignment import CompiledProgram
from ir_passes.compile.calling import Calling
from ir_passes.compile.certificate import Certificate
from ir_passes.compile.exported import Exported, export
from ir_passes.compile.html import table
from ir_passes.compile.planned_step import plan_graph
from ir_passes.compile.running import Running, successors_of
from ir_passes.compile.stage import ProvedTrace, Stage
from ir_passes.jaxpr.timing import paused
from ir_passes.rewrites.graph import Graph
from ir_passes.scratch.planner import Plan
from ir_passes.targets import Target, TargetError
from ir_passes.targets.kernel_limits import KernelResources, kernel_resources
from ir_passes.xla_audit.kernels import Kernels, kernels_of


def _refuse(target: Target, *args: Any, **kwargs: Any) -> Any:
    raise TargetError(
        f"the step was compiled for {target.name} ({target.device_kind}), which this process lacks: it can be "
        "inspected here, not called"
    )


class CompiledStep(Running, Stage):
    """A compiled step; call it like its function, without static arguments.

    A call consumes pools with successors. The step has the attributes of `jax.stages.Compiled`.

    Attributes:
        jaxpr: compiled program, after the rewrites.
        compiled: XLA's executable.
        audit: report; None without an audit.
        passes: effects of rewrites.
        target: absent machine; None for a step that can be called.
    """

    def __init__(self, step: ProvedTrace, calling: Calling, program: CompiledProgram, certificate: Certificate):
        entry = calling.entry(program.compiled) if step.absent_target is None else partial(_refuse, step.absent_target)
        Running.__init__(self, entry, successors_of(step.bound), step.certify)
        Stage.__init__(self, step.trace, step.bound)
        self.jaxpr, self.passes, self.target = step.proved.graph.program, step.proved.passes, step.absent_target
        self.compiled, self._dump, self._kernel_programs = program.compiled, program.dump, program.kernels
        self.certificate, self.audit, self.calling = certificate, program.report, calling

    @cached_property
    def plan(self) -> Plan:
        """Verified arena of the scratch before XLA's fusion, planned on first access."""
        return plan_graph(Graph(self.jaxpr, self.bound))

    @cached_property
    def kernels(self) -> Kernels:
        """Operations of XLA's program; raises HloError if JAX does not expose it."""
        with paused():
            return kernels_of(self.compiled, self._dump, self.calling.compiled_bound(self.bound))

    @cached_property
    def kernel_resources(self) -> tuple[KernelResources, ...]:
        """Threads, registers and spills of Pallas kernels for an absent GPU; may raise TargetError."""
        if self.target is None or self.target.is_local or self.target.platform != "gpu":
            return ()
        names = sorted({kernel.op_name for kernel in self.kernels.kernels if kernel.shapes})
        if names and not self._kernel_programs:
            raise TargetError(
                f"XLA dumped no PTX of {', '.join(names)}: their registers and spills are unknown. Install a "
                "version of jax that hybridlm's tests know"
            )
        return kernel_resources(self._kernel_programs, self.target.name)

    def __repr__(self) -> str:
        return f"CompiledStep({self.certificate.step}, lanes={self.bound.lanes}, {self.certificate.state})"

    def _repr_html_(self) -> str:
        pools = [(pool.path, pool.successor or "only read", pool.bytes, pool.copies) for pool in self.certificate.pools]
        scratch = [
            ("live at once before fusion", self.plan.lower_bound),
            ("allocated by XLA", self.certificate.memory.temp),
        ]
        return (
            self.certificate._repr_html_()
            + table(("pool", "written in place as", "bytes", "copies of its type"), pools)
            + table(("scratch", "bytes"), scratch)
        )

    def report(self) -> str:
        return f"{self.certificate.report()}\n{self.plan.report(10)}"

    def export(self, form: Literal["stablehlo", "executable"] = "stablehlo") -> Exported:
        """Return the step and certificate in a form for other processes; see `Exported`."""
        platform = None if self.target is None else self.target.platform
        return export(self.calling, self.jaxpr, self.compiled, self.bound, self.certificate, form, platform)

    def as_text(self) -> str | None:
        return self.compiled.as_text()

    def cost_analysis(self) -> Any:
        """XLA's cost, as in `jax.stages.Compiled`."""
        return self.compiled.cost_analysis()

    def memory_analysis(self) -> Any:
        """Bytes of arguments, results and scratch."""
        return self.compiled.memory_analysis()

    def runtime_executable(self) -> Any:
        return self.compiled.runtime_executable()

    @property
    def input_shardings(self) -> Any:
        """Sharding of each argument, as a tree of (args, kwargs)."""
        placed = self.compiled.input_shardings
        return placed if self.calling.argnums is not None else jax.tree.unflatten(self.in_tree, placed[0])

    @property
    def output_shardings(self) -> Any:
        """Sharding of each result, as a tree."""
        placed = self.compiled.output_shardings
        return placed if self.calling.in_order else self.calling.restored(placed)
