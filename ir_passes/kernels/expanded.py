"""Programs with plain operations instead of kernels."""

from collections.abc import Callable
from dataclasses import dataclass

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.bodies import map_equations
from ir_passes.kernels.memory import UnreadableKernel
from ir_passes.kernels.program import kernel_program


@dataclass(frozen=True)
class ReadKernels:
    """A program with plain operations instead of readable kernels.

    Attributes:
        read: kernels, each with the `written` of its declared grid, or None.
        unread: id of another kernel's body -> the reason.
    """

    program: ir.ClosedJaxpr
    read: list[tuple[ir.JaxprEqn, bool | None]]
    unread: dict[int, str]


def read_kernels(
    program: ir.ClosedJaxpr,
    keep: Callable[[ir.JaxprEqn], bool],
    is_written: Callable[[ir.JaxprEqn], bool | None] = lambda eqn: None,
) -> ReadKernels:
    """Replace the kernels that are not kept.

    Args:
        is_written: the `written` of a kernel's declared grid, or None; may raise UnreadableKernel.
    """
    read: list[tuple[ir.JaxprEqn, bool | None]] = []
    unread: dict[int, str] = {}

    def change(eqn: ir.JaxprEqn) -> list[ir.JaxprEqn]:
        if eqn.primitive.name != "pallas_call" or keep(eqn):
            return [eqn]
        try:
            written = is_written(eqn)
            call = ir.call_instead(eqn, kernel_program(eqn, written))
        except Exception as error:  # noqa: BLE001 - JAX may not trace an operation outside a kernel
            kind = "" if isinstance(error, UnreadableKernel) else f"{type(error).__name__}: "
            unread[id(eqn.params["jaxpr"])] = f"{kind}{error}"
            return [eqn]
        read.append((eqn, written))
        return [call]

    return ReadKernels(map_equations(program, change, keep=keep), read, unread)
