"""What XLA:CPU hands to a library as one fusion, and which of it the library computes wrongly.

Where products are fused with what they read (`xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_DOT`), the
library reads memory beside a right operand that is broadcast inside the fusion: jax 0.10.2 and 0.12.0 return wrong
numbers, some of them 1e22, of `x @ jnp.ones((16, 2))`. It was seen with scalars, vectors and matrices, along dimensions
that are summed, kept and batched; never on the left. So a right operand is one of the fusion's, as it is or converted;
a left one may be broadcast.
"""

from collections.abc import Iterator

from ir_passes.findings import Finding, FindingKind, where
from ir_passes.program import Computation, Instruction, Module

LIBRARY = b'"__ynn_fusion"'
"""In the backend configuration of the fusions of that library; others are XLA's own code."""
RIGHT = ("parameter", "bitcast", "convert")
LEFT = (*RIGHT, "broadcast")
"""What may lie between the operands of a fusion and those of its products."""


def misread_operands(module: Module) -> Iterator[Finding]:
    """Products inside fusions of a library that read something else than they may."""
    for one in module.instructions.values():
        if one.opcode == "fusion" and LIBRARY in one.backend_config:
            for fused in (module.computations[called] for called in one.called):
                yield from _of_fusion(one, fused, module)


def _of_fusion(fusion: Instruction, fused: Computation, module: Module) -> Iterator[Finding]:
    inside = {one.id: one for one in fused.instructions}
    for product in (one for one in inside.values() if one.opcode == "dot"):
        for side, operand, may in zip(("left", "right"), product.operands, (LEFT, RIGHT), strict=True):
            read = inside[operand]
            while read.opcode in may and read.operands:
                (before,) = read.operands
                read = inside[before]
            if read.opcode not in may:
                yield Finding(
                    FindingKind.FUSED_OPERAND,
                    where(fusion, module),
                    f"the product %{product.name} reads %{read.name} ({read.opcode} {read.array}) on its {side} inside "
                    f"a fusion that a library computes, expected an operand of the fusion through {', '.join(may[1:])}",
                    "Compile the step without xla_cpu_experimental_ynn_fusion_type, or give it what the product reads "
                    "as an argument.",
                )
