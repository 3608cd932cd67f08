"""Choice between an operation's plain form and its kernels.

The plain JAX form defines an operation and its derivatives. Proofs read Pallas kernels, but no C++
(`models.cpu_kernels`): a CPU kernel is declared as a `PoolKernel` (a call), or in `ROW_KERNELS` (a row-wise function):
function, "lane" or "shared" per array, and declared combinations of its static arguments, by name.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Int32

from models.cpu_kernels.library import BY_SLOT, INSTRUCTIONS, library
from models.ops.gpu_call import runs_kernels
from models.sharding.devices import Devices, varying_like
from models.state.rows import Slots

MODES = ("off", "auto", "interpret")
"""Plain forms; the platform's kernels; the interpreter's."""

MAX_OFFSET = 1 << 31
"""Numbers within signed 32-bit offsets."""


@dataclass(frozen=True)
class Kernel:
    """A kernel with its platform and limits.

    Attributes:
        platform: compilation target. GPU kernels reject old GPUs, and offsets that wrap: above 2^31 numbers in up to
            2^32 bytes. CPU kernels need the C++ library; the mode "interpret" runs the others.
        supports: (operands) -> whether it takes them.
    """

    name: str
    platform: str
    supports: Callable[..., bool] = field(repr=False)

    def chosen(self, devices: Devices, *operands: Any) -> bool:
        """Return whether the kernel runs; raises ValueError for an unknown mode."""
        check_mode(devices.kernels)
        compiled = devices.kernels == "auto" and devices.platform == self.platform
        if not compiled and not (devices.interpret and self.platform != "cpu"):
            return False
        if self.platform == "cpu" and library() is None:
            return False
        on_gpu = self.platform == "gpu"
        if on_gpu and ((compiled and not runs_kernels()) or any(map(_wraps, jax.tree.leaves(operands)))):
            return False
        return self.supports(*operands)


class PoolKernel(NamedTuple):
    """Declaration of a C++ call that updates pools in place.

    A lane reads and writes its row, by the first operand `slots_operand`, or its pages, by a page table; length 0
    writes nothing. The first result has a row per lane.

    Attributes:
        operands: "length", "lane" or "shared" per array between the first operand and the pools.
        pools: dimension names of each pool.
        fresh: index of a bool [N] operand, True for lanes that do not read their rows.
        writes: False for a read.
    """

    operands: str
    pools: tuple[str, ...]
    fresh: int | None = None
    writes: bool = True


def pool_target(target: str, slots: Any) -> str:
    return target if slots is None else target + BY_SLOT


def fastest() -> str:
    """Return this processor's fastest instruction set."""
    kernels = library()
    assert kernels is not None, "callers have chosen the kernel"
    return kernels.instructions[-1]


def cpu_call(
    target: str,
    operands: Sequence[Array],
    results: Sequence[tuple[tuple[int, ...], Any]],
    *,
    instructions: str | None = None,
    aliases: Mapping[int, int] | None = None,
    **attributes: Any,
) -> list[Array]:
    """Call a C++ kernel; results vary over devices like all operands together.

    Args:
        results: shapes and dtypes.
        instructions: of `INSTRUCTIONS`; None for the fastest.
        aliases: number of an operand -> number of the result in its memory.

    Raises:
        ValueError: unknown instructions.
    """
    default = fastest()  # loads the library, which registers the call targets
    if instructions is not None and instructions not in INSTRUCTIONS:
        raise ValueError(f"instructions: expected one of {', '.join(INSTRUCTIONS)}, got {instructions!r}")
    operands = varying_like(operands, operands)
    types = [_call_result(shape, dtype, operands[-1]) for shape, dtype in results]
    call = jax.ffi.ffi_call(target, types, vmap_method="sequential", input_output_aliases=dict(aliases or {}))
    number = np.int64(INSTRUCTIONS.index(instructions or default))
    return list(call(*operands, **attributes, instructions=number))


def _call_result(shape: tuple[int, ...], dtype: Any, like: Array) -> jax.ShapeDtypeStruct:
    operand = jax.typeof(like)
    if not operand.mat.varying:
        return jax.ShapeDtypeStruct(shape, dtype)
    # JAX looks up the axes in the mesh of the sharding.
    sharding = NamedSharding(operand.sharding.mesh, PartitionSpec())
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, manual_axis_type=operand.mat)


def slots_operand(slots: Slots) -> Int32[Array, "*lane"]:
    """Return the lane rows, empty for row i of lane i."""
    return jnp.zeros(0, jnp.int32) if slots is None else slots


def pool_call(
    target: str,
    slots: Slots,
    operands: Sequence[Array],
    output: tuple[int, ...],
    keep_state: bool,
    instructions: str | None,
    **attributes: Any,
) -> tuple[Array, Array | None]:
    """Call a kernel of a `PoolKernel` with one pool: `slots_operand` first, the pool last.

    Args:
        output: shape of the first result, float32.
        keep_state: `target` reads the pool.
        instructions: as for `cpu_call`.

    Returns:
        The first result, and the new pool, None with `keep_state`.
    """
    results = [(output, jnp.float32), (operands[-1].shape, operands[-1].dtype)][: 2 - keep_state]
    aliases = {} if keep_state else {len(operands) - 1: 1}
    call = pool_target(target, slots)
    out, *pool = cpu_call(call, operands, results, aliases=aliases, instructions=instructions, **attributes)
    return out, None if keep_state else pool[0]


def combinations(**values: Iterable[Any]) -> tuple[dict[str, Any], ...]:
    return tuple(dict(zip(values, each, strict=True)) for each in itertools.product(*values.values()))


def _wraps(operand: Any) -> bool:
    if not hasattr(operand, "shape") or not hasattr(operand, "dtype"):
        return False
    numbers = math.prod(operand.shape)
    return numbers > MAX_OFFSET and numbers * operand.dtype.itemsize <= 2 * MAX_OFFSET


def default_mode(platform: str) -> str:
    """Return the default mode: kernels on CPUs."""
    return "auto" if platform == "cpu" else "off"


def check_mode(mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"kernels: expected one of {', '.join(map(repr, MODES))}, got {mode!r}")
