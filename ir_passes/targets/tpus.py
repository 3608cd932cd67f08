"""TPUs: the device description for libtpu's compiler, and Google Cloud's figures per chip."""

from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True)
class Tpu:
    """One TPU.

    Attributes:
        kind: device kind, as JAX names it.
        version: its name in libtpu's topologies.
        memory, bandwidth: bytes of a chip, bytes per second.
        half, single: peak operations per second of bfloat16 products, and of float32 products; operands of float32
            products are rounded to bfloat16 unless full precision is requested.
        shapes: number of chips -> topology. One chip uses the topology of four, because there is no smaller topology.
        settings: further arguments of the topology.
    """

    kind: str
    version: str
    memory: int
    bandwidth: int
    half: float
    single: float
    shapes: tuple[tuple[int, str], ...]
    settings: tuple[tuple[str, str], ...] = ()


FLAT = ((1, "2x2"), (4, "2x2"), (8, "2x4"), (16, "4x4"), (32, "4x8"), (64, "8x8"))
SOLID = ((1, "2x2x1"), (4, "2x2x1"), (8, "2x2x2"), (16, "2x2x4"), (32, "2x4x4"), (64, "4x4x4"))
MEGACORE = (("chip_config_name", "megacore"),)
"""Both cores of a v4 chip are one device, which is how JAX runs it."""

TPUS: dict[str, Tpu] = {
    "tpu-v4": Tpu("TPU v4", "v4", 32 * GIB, 1_228_000_000_000, 275e12, 275e12, SOLID, MEGACORE),
    "tpu-v5e": Tpu("TPU v5 lite", "v5e", 16 * GIB, 819_000_000_000, 197e12, 197e12, FLAT),
    "tpu-v5p": Tpu("TPU v5", "v5p", 95 * GIB, 2_765_000_000_000, 459e12, 459e12, SOLID),
    "tpu-v6e": Tpu("TPU v6 lite", "v6e", 32 * GIB, 1_640_000_000_000, 918e12, 918e12, FLAT),
}
