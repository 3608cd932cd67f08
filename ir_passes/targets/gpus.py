"""Descriptions of GPUs and TPUs, from data sheets.

Sources: openxla/xla, xla/backends/gpu/target_config/specs; for L4, L40, L40S and RTX 4090 NVIDIA's data sheets. Peaks
are without sparsity; the float32 peak is TF32's.
"""

from dataclasses import dataclass

MAX_GPUS = 8
KNOWN_KINDS = {
    (8, 0): "NVIDIA A100",
    (8, 6): "NVIDIA A10",
    (8, 9): "NVIDIA L4",
    (9, 0): "NVIDIA H100",
    (10, 0): "NVIDIA B200",
}
"""Compute capability -> device kind known to all versions of JAX (jax/_src/pallas/triton/gpu_info.py)."""


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    Attributes:
        kind: JAX's device kind.
        capability: CUDA compute capability; `accelerated` for code of this one alone ("9.0a").
        memory, bandwidth, l2: bytes, bytes per second, bytes.
        cores, clock: multiprocessors, GHz.
        fpus, threads: float32 units and threads per core.
        shared, block_shared: bytes of shared memory per core and per block.
        half, single: peak operations per second of bfloat16 (float16) and float32 products.
    """

    kind: str
    capability: tuple[int, int]
    accelerated: bool
    memory: int
    bandwidth: int
    l2: int
    cores: int
    clock: float
    fpus: int
    threads: int
    shared: int
    block_shared: int
    half: float
    single: float

    def config(self) -> str:
        """Return XLA's GpuTargetConfigProto as text."""
        major, minor = self.capability
        extension = "ACCELERATED_FEATURES" if self.accelerated else "NONE"
        return f"""
gpu_device_info {{
  name: "{self.kind}"
  device_vendor: "NVIDIA Corporation"
  platform_version: "Compute Capability {major}.{minor}{"a" if self.accelerated else ""}"
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {extension} }}
  driver_version: "13.0.0"
  runtime_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0"
  dnn_version: "9.10.0"
  device_address_bits: 64
  device_memory_size: {self.memory}
  memory_bandwidth: {self.bandwidth}
  l2_cache_size: {self.l2}
  clock_rate_ghz: {self.clock}
  ecc_enabled: true
  core_count: {self.cores}
  fpus_per_core: {self.fpus}
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: {self.threads}
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {self.block_shared}
  shared_memory_per_core: {self.shared}
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
runtime_version {{ major: 13 }}
device_description_str: "{self.kind}"
"""


# fmt: off
GPUS: dict[str, Gpu] = {
    "nvidia-a100": Gpu(
        "NVIDIA A100-SXM4-80GB", (8, 0), False, 85_100_068_864, 2_039_040_000_000, 41_943_040, 108, 1.41, 64, 2048,
        167_936, 166_912, 312e12, 156e12,
    ),
    "nvidia-a6000": Gpu(
        "NVIDIA RTX A6000", (8, 6), False, 51_041_271_808, 768_096_000_000, 6_291_456, 84, 1.8, 128, 1536, 102_400,
        101_376, 154.8e12, 77.4e12,
    ),
    "nvidia-l4": Gpu(
        "NVIDIA L4", (8, 9), False, 24_152_899_584, 300_000_000_000, 50_331_648, 58, 2.04, 128, 1536, 102_400, 101_376,
        121e12, 60e12,
    ),
    "nvidia-l40": Gpu(
        "NVIDIA L40", (8, 9), False, 48_305_799_168, 864_000_000_000, 100_663_296, 142, 2.49, 128, 1536, 102_400,
        101_376, 181e12, 90.5e12,
    ),
    "nvidia-l40s": Gpu(
        "NVIDIA L40S", (8, 9), False, 48_305_799_168, 864_000_000_000, 100_663_296, 142, 2.52, 128, 1536, 102_400,
        101_376, 362e12, 183e12,
    ),
    "nvidia-rtx4090": Gpu(
        "NVIDIA GeForce RTX 4090", (8, 9), False, 25_757_220_864, 1_008_000_000_000, 75_497_472, 128, 2.52, 128, 1536,
        102_400, 101_376, 165.2e12, 82.6e12,
    ),
    "nvidia-h100": Gpu(
        "NVIDIA H100 80GB HBM3", (9, 0), True, 84_942_979_072, 3_352_320_000_000, 52_428_800, 132, 1.98, 128, 2048,
        233_472, 232_448, 989.4e12, 494.7e12,
    ),
    "nvidia-h200": Gpu(
        "NVIDIA H200 141GB HBM3e", (9, 0), True, 151_397_597_184, 4_800_000_000_000, 52_428_800, 132, 1.98, 128, 2048,
        233_472, 232_448, 989.4e12, 494.7e12,
    ),
    "nvidia-b200": Gpu(
        "NVIDIA B200", (10, 0), True, 191_514_411_008, 7_672_320_000_000, 132_644_864, 148, 1.965, 128, 2048, 233_472,
        232_448, 2250e12, 1125e12,
    ),
}
# fmt: on


GIB = 1 << 30


@dataclass(frozen=True)
class Tpu:
    """A TPU.

    Attributes:
        kind: JAX's device kind.
        version: in libtpu's topologies.
        memory, bandwidth: bytes, bytes per second.
        half, single: peak operations per second of bfloat16 and float32 products; by default float32 operands are
            rounded to bfloat16.
        shapes: chips -> topology; one chip uses the smallest, of four.
        settings: further topology arguments.
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
"""Both cores of a v4 chip are one device, as in JAX."""

TPUS: dict[str, Tpu] = {
    "tpu-v4": Tpu("TPU v4", "v4", 32 * GIB, 1_228_000_000_000, 275e12, 275e12, SOLID, MEGACORE),
    "tpu-v5e": Tpu("TPU v5 lite", "v5e", 16 * GIB, 819_000_000_000, 197e12, 197e12, FLAT),
    "tpu-v5p": Tpu("TPU v5", "v5p", 95 * GIB, 2_765_000_000_000, 459e12, 459e12, SOLID),
    "tpu-v6e": Tpu("TPU v6 lite", "v6e", 32 * GIB, 1_640_000_000_000, 918e12, 918e12, FLAT),
}
