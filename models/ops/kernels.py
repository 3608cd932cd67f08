"""The choice between an operation's plain form and its kernels.

The plain JAX form defines an operation, is differentiable, and runs where no kernel is chosen. A kernel computes the
same numbers up to rounding. An operation asks `Kernel.chosen`, a function of the platform and of shapes only. Kernels
for GPUs and TPUs are Pallas programs, which the proof reads. Kernels for CPUs are C++ (`models.cpu_kernels`), which it
does not read: each is declared where it is defined, as a `RowKernel` (inside a function) or a `PoolKernel` (a call).
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int32

from models.cpu_kernels.library import BY_SLOT
from models.sharding.devices import Devices
from models.state.rows import Slots

MODES = ("off", "auto", "interpret")
"""Plain forms everywhere; kernels where the platform has them; Pallas kernels everywhere, run by its interpreter."""

MAX_OFFSET = 1 << 31
"""Numbers of an array within reach of signed 32-bit offsets."""


@dataclass(frozen=True)
class Kernel:
    """A kernel, its platforms and its limits.

    Attributes:
        name: of its function; certificates list it.
        platforms: targets of its compilation. A kernel for GPUs only rejects arrays with offsets that wrap: more than
            2^31 numbers in up to 2^32 bytes, such as codes of one byte.
        unsupported: function of the operation's operands; returns the reason to reject them, or None.
        interpreted: True for a Pallas kernel, which runs on any platform in the mode "interpret".
    """

    name: str
    platforms: tuple[str, ...]
    unsupported: Callable[..., str | None] = field(repr=False)
    interpreted: bool = True

    def chosen(self, devices: Devices, *operands: Any) -> bool:
        """Return True if the kernel runs.

        Args:
            devices: platform and mode of the step.
            operands: of the operation, or their types.

        Raises:
            ValueError: unknown `devices.kernels`.
        """
        check_mode(devices.kernels)
        if self.platforms == ("gpu",) and any(map(_wraps, jax.tree.leaves(operands))):
            return False
        compiled = devices.kernels == "auto" and devices.platform in self.platforms
        return (compiled or (devices.interpret and self.interpreted)) and self.unsupported(*operands) is None


class RowKernel(NamedTuple):
    """Declaration of a row-wise function of "lane" and "shared" operands.

    Attributes:
        function: made by `jax.jit`.
        operands: "lane" or "shared" for each array.
        static: every declared combination of static arguments, by name.
    """

    function: Callable[..., Any]
    operands: str
    static: tuple[Mapping[str, Any], ...]


class PagedKernel(NamedTuple):
    """Declaration of a C++ call that updates pools of pages in place.

    A lane reads the pages of its row of the page table, the first operand, and writes those of its new tokens; a lane
    of length 0 writes none. The first result has a row for each lane.

    Attributes:
        operands: "length" (tokens of each lane) or "lane" for each array between the table and the pools.
        pools: names of the dimensions of each pool.
    """

    operands: str
    pools: tuple[str, ...]


class PoolKernel(NamedTuple):
    """Declaration of a C++ call that updates pools of lanes in place.

    A lane reads and writes only its row; a lane of length 0 keeps it. The first operand is the row of each lane, empty
    for row i of lane i (`slots_operand`). The first result has a row for each lane.

    Attributes:
        operands: "length" (tokens of each lane), "lane" or "shared" for each array between the slots and the pools.
        pools: names of the dimensions of each pool.
        fresh: index of the operand, bool [N], True for a new lane, which does not read its rows.
        writes: False for a call that only reads the pools.
    """

    operands: str
    pools: tuple[str, ...]
    fresh: int | None = None
    writes: bool = True


def pool_target(target: str, slots: Any) -> str:
    """Return the call target of a kernel of pools, without slots for None."""
    return target if slots is None else target + BY_SLOT


def slots_operand(slots: Slots) -> Int32[Array, "*lane"]:
    """Return the first operand of a kernel of pools."""
    return jnp.zeros(0, jnp.int32) if slots is None else slots


def combinations(**values: Iterable[Any]) -> tuple[dict[str, Any], ...]:
    """Return every combination of the values of some static arguments."""
    return tuple(dict(zip(values, each, strict=True)) for each in itertools.product(*values.values()))


def _wraps(operand: Any) -> bool:
    """Return True if Triton's signed 32-bit offsets wrap, for up to 2^32 bytes."""
    if not hasattr(operand, "shape") or not hasattr(operand, "dtype"):
        return False
    numbers = math.prod(operand.shape)
    return numbers > MAX_OFFSET and numbers * operand.dtype.itemsize <= 2 * MAX_OFFSET


def default_mode(platform: str) -> str:
    """Return the default mode: kernels on CPUs, the only platform with measured speed."""
    return "auto" if platform == "cpu" else "off"


def check_mode(mode: str) -> None:
    """Raise ValueError for a mode outside `MODES`."""
    if mode not in MODES:
        raise ValueError(f"kernels: expected one of {', '.join(map(repr, MODES))}, got {mode!r}")


def result_like(shape: tuple[int, ...], dtype: Any, like: jax.Array) -> jax.ShapeDtypeStruct:
    """Return the type of a kernel's result that varies over devices like an operand."""
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=jax.typeof(like).mat)
