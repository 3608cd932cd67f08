"""Part 1: the machine: driver, clocks, memory, versions, bandwidth, a tiny kernel."""

import subprocess
import sys
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from device_records import Failure, NotRun, Records
from device_timing import loop_seconds, looped

from ir_passes.targets import local_target
from models.ops.gpu_call import gpu_call

QUERY = (
    "name,driver_version,memory.total,memory.used,clocks.sm,clocks.mem,clocks.max.sm,power.limit,temperature.gpu,"
    "ecc.mode.current,compute_mode,mig.mode.current"
)
PACKAGES = (
    "jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda13-pjrt", "jax-cuda12-plugin", "flax", "orbax-checkpoint", "numpy",
    "ml_dtypes", "safetensors", "tokenizers", "transformers", "torch", "triton", "jaxtyping", "beartype",
    "nvidia-cudnn-cu13", "nvidia-cublas", "nvidia-cuda-nvcc",
)  # fmt: skip
MAX_SECONDS = 20


def preflight(records: Records, rehearse: bool) -> None:
    """Run the checks of part 1."""
    records.plan(["device", "driver", "versions", "copy", "product", "a kernel"])
    target = local_target()
    records.check("device", lambda: _device(target, rehearse))
    records.check("driver", _driver)
    records.check("versions", lambda: {name: version for name in PACKAGES if (version := _version(name))})
    records.check("copy", lambda: _copy(target.bandwidth, 1 << 22 if rehearse else 1 << 30))
    records.check("product", lambda: _product(128 if rehearse else 8192))
    records.check("a kernel", lambda: _kernel(target.platform, rehearse))


def _device(target: Any, rehearse: bool) -> dict[str, Any]:
    device = jax.local_devices()[0]
    memory = device.memory_stats() or {}
    if target.platform == "cpu" and not rehearse:
        raise Failure("jax runs on the CPU: no GPU or TPU", {"device": device.device_kind})
    return {
        "device": device.device_kind, "platform": device.client.platform_version.replace("\n", " "),
        "count": len(jax.local_devices()), "python": sys.version.split()[0], "rehearsal": rehearse,
        "bytes limit": memory.get("bytes_limit", 0), "capability": getattr(device, "compute_capability", ""),
    }  # fmt: skip


def _driver() -> dict[str, Any]:
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=MAX_SECONDS, check=True)
    except FileNotFoundError as error:
        raise NotRun("no nvidia-smi") from error
    return dict(zip(QUERY.split(","), run.stdout.strip().splitlines()[0].split(", "), strict=False))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _copy(bandwidth: int | None, size: int) -> dict[str, Any]:
    """Read and write `size` bytes."""
    array = jnp.ones((2, size // 8), jnp.float32)
    compiled = jax.jit(looped(lambda x: x + 1.0, 0, {})).lower(array, array).compile()
    seconds = loop_seconds(compiled, (array,), 0, {})
    return {"GB/s": 2 * array.nbytes / seconds / 1e9, "data sheet, GB/s": (bandwidth or 0) / 1e9}


def _product(size: int) -> dict[str, Any]:
    matrix = jax.random.normal(jax.random.key(0), (size, size)).astype(jnp.bfloat16)
    compiled = jax.jit(looped(lambda x, y: x @ y, 0, {})).lower(matrix, matrix, matrix).compile()
    return {"bfloat16 TFLOP/s": 2 * size**3 / loop_seconds(compiled, (matrix, matrix), 0, {}) / 1e12}


def _kernel(platform: str, interpret: bool) -> dict[str, Any]:
    if platform != "gpu" and not interpret:
        raise NotRun("a kernel for GPUs")

    def three_lines(x: Any, out: Any) -> None:
        out[...] = x[...] + 1.0

    array, block = jnp.arange(1024, dtype=jnp.float32), ((128,), lambda number: (number,))
    result = jax.ShapeDtypeStruct(array.shape, array.dtype)
    run = gpu_call(three_lines, (8,), [block], (block, result), interpret=interpret)
    error = float(np.max(np.abs(np.asarray(jax.jit(run)(array)) - np.arange(1, 1025))))
    if error:
        raise Failure(f"x + 1: expected no error, got {error}", {"error": error})
    return {"error": error}
