"""Limits of the machine, measured on use: memory bandwidth and matrix multiplication."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridlm.devices.machine import cores
from hybridlm.target_report.step_report import Floor
from ir_passes.targets import local_target

DEFAULT_SQUARE = 2048
REPEATS = 7


@dataclass(frozen=True)
class MachineLimits:
    """Best of several measurements, per second; products are square with float32 results."""

    read_bytes: float
    float32_flops: float
    bfloat16_flops: float

    def floor_seconds(self, floor: Floor) -> float:
        return floor.seconds(max(self.bfloat16_flops, self.float32_flops), self.read_bytes)


def measure_limits(read: int = 1 << 30, square: int = DEFAULT_SQUARE) -> MachineLimits:
    return MachineLimits(_read(read), _multiply(jnp.float32, square), _multiply(jnp.bfloat16, square))


def best_seconds(run: Callable[[], Any]) -> float:
    """Return the shortest time of `run`, after a warm-up."""
    run()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def _read(size: int) -> float:
    count = size // 4
    if local_target().platform != "cpu":
        array = jnp.ones((count,), jnp.float32)
        total = jax.jit(jnp.sum)
        return count * 4 / best_seconds(lambda: total(array).block_until_ready())
    # XLA:CPU's sum is far slower than memory; NumPy's maximum reads at full bandwidth.
    threads = cores()
    parts = [np.arange(count // threads, dtype=np.float32) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        seconds = best_seconds(lambda: list(pool.map(np.max, parts)))
    return sum(part.nbytes for part in parts) / seconds


def _multiply(dtype: Any, square: int) -> float:
    keys = jax.random.split(jax.random.key(0), 2)
    a, b = (jax.random.normal(key, (square, square)).astype(dtype) for key in keys)
    product = jax.jit(lambda a, b: lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32))
    return 2 * square**3 / best_seconds(lambda: product(a, b).block_until_ready())
