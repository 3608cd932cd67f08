"""The seam between operations and kernels: which kernels there are, where each runs, and how to ask for them.

An operation has a plain JAX form, which defines it, is differentiable, and runs wherever no kernel is chosen. A kernel
computes the same numbers up to rounding. Models call operations; an operation asks `Kernel.chosen`, a function of the
platform and of shapes alone, and calls the one or the other. Kernels for GPUs and TPUs are Pallas programs, so that a
step with them is proved from the inside. Those for CPUs are C++ (`models.cpu_kernels`), which no proof reads: each is
the inside of a function that is declared row-wise.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

from models.sharding.devices import Devices

MODES = ("off", "auto", "interpret")
"""Plain forms everywhere; kernels where the platform has them; Pallas kernels everywhere, run by its interpreter."""

MAX_OFFSET = 1 << 31
"""Numbers of an array that offsets of 32 bits with a sign reach."""


@dataclass(frozen=True)
class Kernel:
    """A kernel and where it may take the place of an operation's plain form.

    Attributes:
        name: of its function, by which certificates list it.
        platforms: that it is compiled for. A kernel for GPUs alone takes no array whose offsets wrap: of more than 2^31
            numbers in up to 2^32 bytes, such as codes of one byte.
        unsupported: a function of the operation's operands that says why the kernel does not take them, or None.
        interpreted: whether it is a Pallas kernel, which runs on any platform in the mode "interpret".
    """

    name: str
    platforms: tuple[str, ...]
    unsupported: Callable[..., str | None] = field(repr=False)
    interpreted: bool = True

    def chosen(self, devices: Devices, *operands: Any) -> bool:
        """Whether the kernel runs.

        Args:
            devices: of the step: their platform, and whether operations run kernels.
            operands: of the operation, or their types.

        Raises:
            ValueError: `devices.kernels` is none of `MODES`.
        """
        check_mode(devices.kernels)
        if self.platforms == ("gpu",) and any(map(_wraps, jax.tree.leaves(operands))):
            return False
        compiled = devices.kernels == "auto" and devices.platform in self.platforms
        return (compiled or (devices.interpret and self.interpreted)) and self.unsupported(*operands) is None


def _wraps(operand: Any) -> bool:
    """Whether Triton's offsets into an array wrap: 32 bits with a sign, up to 2^32 bytes (Pallas' Triton lowering)."""
    if not hasattr(operand, "shape") or not hasattr(operand, "dtype"):
        return False
    numbers = math.prod(operand.shape)
    return numbers > MAX_OFFSET and numbers * operand.dtype.itemsize <= 2 * MAX_OFFSET


def default_mode(platform: str) -> str:
    """Return the mode if none is given: kernels where their speed has been measured, which is on CPUs."""
    return "auto" if platform == "cpu" else "off"


def check_mode(mode: str) -> None:
    """Raise ValueError unless a mode is one of `MODES`."""
    if mode not in MODES:
        raise ValueError(f"kernels: expected one of {', '.join(map(repr, MODES))}, got {mode!r}")


def result_like(shape: tuple[int, ...], dtype: Any, like: jax.Array) -> jax.ShapeDtypeStruct:
    """Return the type of a kernel's result, which varies over the devices over which one of its operands does."""
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=jax.typeof(like).mat)
