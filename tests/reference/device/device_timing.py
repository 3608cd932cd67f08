"""Seconds on a device: a looped operation, and a profile by kernel.

Calls from the host say how fast the host calls. Here a program repeats the operation, its state donated and carried
from one iteration to the next, and an operand alternates between two arrays, or XLA would compute the operation once.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from device_records import Records
from jax import lax

TURNS = 32
ROUNDS = 3
MAX_PROFILE = 64 << 20
"""Bytes of a profile that are read."""


def looped(
    operation: Callable[..., Any], varied: int, states: Mapping[int, int], turns: int = TURNS
) -> Callable[..., tuple[Any, ...]]:
    """Return a function that repeats an operation with one alternating operand.

    Args:
        operation: of arrays; returns an array or a tuple of arrays.
        varied: number of the operand that alternates between two arrays.
        states: number of an operand -> number of the result that takes its place in the next iteration.
        turns: iterations.

    Returns:
        (other array, *operands) -> results of the last iteration.
    """

    def run(other: Any, *operands: Any) -> tuple[Any, ...]:
        pair = jax.tree.map(lambda *args: jnp.stack(args), operands[varied], other)

        def turn(number: Any, results: tuple[Any, ...]) -> tuple[Any, ...]:
            local = list(operands)
            local[varied] = jax.tree.map(lambda pair: lax.dynamic_index_in_dim(pair, number & 1, 0, False), pair)
            for operand, result in states.items():
                local[operand] = results[result]
            return as_tuple(operation(*local))

        types = jax.eval_shape(lambda *args: as_tuple(operation(*args)), *operands)
        zeros = [jnp.zeros(array.shape, array.dtype) for array in types]
        for operand, result in states.items():
            zeros[result] = operands[operand]
        return lax.fori_loop(0, turns, turn, tuple(zeros))

    return run


def as_tuple(results: Any) -> tuple[Any, ...]:
    """Return the results of an operation as a tuple."""
    return tuple(results) if isinstance(results, tuple) else (results,)


def loop_seconds(
    compiled: Callable[..., tuple[Any, ...]],
    operands: tuple[Any, ...],
    varied: int,
    states: Mapping[int, int],
    turns: int = TURNS,
) -> float:
    """Return seconds per iteration, the best of several calls; states are consumed.

    Args:
        compiled: a compiled function of `looped`, with its states donated.
        operands: of the operation.
        varied, states, turns: as of `looped`.
    """
    other, local, best = jax.tree.map(lambda x: jnp.flip(x, 0), operands[varied]), list(operands), float("inf")
    for number in range(ROUNDS + 1):
        start = time.perf_counter()
        results = jax.block_until_ready(compiled(other, *local))
        if number:  # the first call warms up
            best = min(best, (time.perf_counter() - start) / turns)
        for operand, result in states.items():
            local[operand] = results[result]
    return best


@dataclass(frozen=True)
class Profile:
    """Operations that the device ran while a function was called.

    Attributes:
        seconds: of all kernels.
        launches: number of kernels.
        largest: name of a kernel -> its seconds, the 12 that take longest.
        content: the profile in XLA's format; empty if it is larger than `MAX_PROFILE`.
    """

    seconds: float
    launches: int
    largest: dict[str, float]
    content: bytes


def profiled(run: Callable[[], Any]) -> Profile:
    """Return the profile of a completed function; on CPUs of its threads."""
    with tempfile.TemporaryDirectory(prefix="hybridlm-profile-") as folder:
        with jax.profiler.trace(folder):
            run()
        content = b"".join(file.read_bytes() for file in Path(folder).rglob("*.xplane.pb"))
    if len(content) > MAX_PROFILE:
        return Profile(0.0, 0, {}, b"")
    planes = list(jax.profiler.ProfileData.from_serialized_xspace(content).planes)
    devices = [plane for plane in planes if plane.name.startswith("/device:")]
    seconds, launches = Counter[str](), 0
    for plane in devices or planes:
        for line in plane.lines:
            if devices and not line.name.startswith(("Stream", "XLA Ops")):
                continue
            for event in line.events:
                if event.name.startswith("$"):  # a Python function
                    continue
                seconds[event.name] += event.duration_ns / 1e9  # type: ignore[assignment]  # float seconds
                launches += 1
    return Profile(sum(seconds.values()), launches, dict(seconds.most_common(12)), content)


def keep_profile(records: Records, name: str, profile: Profile) -> None:
    """Write a profile as evidence."""
    if profile.content:
        records.write_evidence("profiles", f"{name}.xplane.pb", profile.content)
