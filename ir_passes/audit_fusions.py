"""What XLA:CPU hands to a library as one fusion, and which of it the library computes wrongly.

Where products are fused with what they read (`xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_DOT`), the
library reads memory beside a right operand that is broadcast inside the fusion: jax 0.10.2 and 0.12.0 return wrong
numbers, some of them 1e22, of `x @ jnp.ones((16, 2))`. It was seen with scalars, vectors and matrices, along dimensions
that are summed, kept and batched; never with what is broadcast on the left.
"""

from collections.abc import Iterator

from ir_passes.findings import Finding, FindingKind, where
from ir_passes.program import Computation, Instruction, Module

LIBRARY = b'"__ynn_fusion"'
"""In the backend configuration of the fusions of that library; others are XLA's own code."""


def misread_operands(module: Module) -> Iterator[Finding]:
    """Products inside fusions of the library whose right operand is computed from something that is broadcast there."""
    for one in module.instructions.values():
        if one.opcode == "fusion" and LIBRARY in one.backend_config:
            for fused in (module.computations[called] for called in one.called):
                for product, read in _misread(fused):
                    yield Finding(
                        FindingKind.FUSED_OPERAND,
                        where(one, module),
                        f"the right operand of the product %{product.name} is computed from %{read.name} "
                        f"({read.opcode} {read.array}) inside a fusion that a library computes, which reads beside it",
                        "Compile the step without xla_cpu_experimental_ynn_fusion_type, or give it the right operand "
                        "as an argument.",
                    )


def _misread(fused: Computation) -> Iterator[tuple[Instruction, Instruction]]:
    """Such products of a fusion, each with something that is broadcast."""
    spread: dict[int, Instruction] = {}  # by what is computed from it
    for one in fused.instructions:  # operands before users
        if one.opcode == "dot" and one.operands[1] in spread:
            yield one, spread[one.operands[1]]
        if one.opcode == "broadcast":
            spread[one.id] = one
        else:
            spread.update((one.id, spread[operand]) for operand in one.operands if operand in spread)
