"""The seam between operations and kernels: which kernels there are, where each runs, and how to ask for them.

An operation has a plain JAX form, which defines it, is differentiable, and runs wherever no kernel is chosen. A kernel
computes the same numbers up to rounding. Models call operations; an operation asks `Kernel.chosen`, a function of the
platform and of shapes alone, and calls the one or the other. Kernels for GPUs and TPUs are Pallas programs, so that a
step with them is proved from the inside. Those for CPUs are C++ (`models.cpu_kernels`), which no proof reads: each is
the inside of a function (`RowKernel`), or a call (`PoolKernel`), which is declared beside its code.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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


class RowKernel(NamedTuple):
    """Declaration of a jitted function as row-wise.

    Each row of its result depends on the same row of its "lane" operands, and on "shared" ones.

    Attributes:
        function: made by `jax.jit`.
        operands: "lane" or "shared" for each array.
        static: static arguments by name, in every combination that is declared.
    """

    function: Callable[..., Any]
    operands: str
    static: tuple[Mapping[str, Any], ...]


class PoolKernel(NamedTuple):
    """Declaration of a call of C++ that writes pools in place, with a row for each lane.

    A lane reads and writes only its own row; a lane of length 0 keeps it. The first result has a row for each lane.

    Attributes:
        operands: "length" (tokens of each lane), "lane" or "shared" for each array before the pools.
        pools: names of the dimensions of each pool.
        fresh: index of the operand, bool [N], that is True for a lane which begins and does not read its rows.
        writes: False for a call that reads the pools only.
    """

    operands: str
    pools: tuple[str, ...]
    fresh: int | None = None
    writes: bool = True


def combinations(**values: Iterable[Any]) -> tuple[dict[str, Any], ...]:
    """Return every combination of the values of some static arguments."""
    return tuple(dict(zip(values, each, strict=True)) for each in itertools.product(*values.values()))


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
