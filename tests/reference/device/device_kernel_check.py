"""Part 2: kernels in published sizes: float64 error, 50 equal repeats, time, GB/s.

Threads compile all kernels ahead. Results are compared as programs are ready, and only then are the kernels timed, so
that no compilation runs during a timing.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from device_kernel_cases import KernelCase, kernel_cases
from device_programs import keep_program
from device_records import Failure, NotRun, Records
from device_timing import TURNS, as_tuple, loop_seconds, looped

from hybridlm.devices.machine import cores
from ir_passes.targets import Target, local_target

MAX_ERROR = 1e-4
"""Largest difference of a number from its float64 value, over the largest value of its array."""
REPEATS, REHEARSED_REPEATS = 50, 2
COMPILE_SHARE = 0.6
"""Share of the time spent compiling kernels before the compiled ones are timed."""


@dataclass
class Compiled:
    """A case's programs; `lowered` precedes XLA, None without a kernel."""

    case: KernelCase
    lowered: jax.stages.Lowered | None
    single: Callable[..., Any] | None = None
    loop: Callable[..., Any] | None = None


def check_kernels(records: Records, rehearse: bool) -> None:
    """Run part 2."""
    target = local_target()
    mode, turns = ("interpret", 2) if rehearse else ("auto", TURNS)
    cases = kernel_cases("gpu" if rehearse else target.platform, rehearse)
    records.plan([name for case in cases for name in (case.name, f"{case.name}, time")])
    threads = ThreadPoolExecutor(cores())
    programs = {case.name: threads.submit(compile_case, case, mode, turns) for case in cases}
    compiled_by = time.monotonic() + COMPILE_SHARE * records.seconds_left
    correct: dict[str, Compiled] = {}
    for case in cases:
        wait([programs[case.name]], timeout=max(0.0, compiled_by - time.monotonic()))
        program = programs[case.name]
        compare = partial(compare_case, case, program, records, REHEARSED_REPEATS if rehearse else REPEATS)
        if records.check(case.name, compare, partial(_keep, case, program, records)):
            correct[case.name] = program.result()
    threads.shutdown(wait=False, cancel_futures=True)
    for case in cases:
        records.check(f"{case.name}, time", partial(_timed, correct.get(case.name), target, turns))


def compile_case(case: KernelCase, mode: str, turns: int) -> Compiled:
    """Compile an operation with its kernel, once and in a loop."""
    types = jax.eval_shape(case.operands)
    run = partial(case.run, kernels=mode)
    traced = jax.jit(run).trace(*types)
    if "pallas_call" not in str(traced.jaxpr):
        return Compiled(case, None)
    program = Compiled(case, traced.lower())
    assert program.lowered is not None
    program.single = program.lowered.compile()
    donated = tuple(operand + 1 for operand in case.states)
    loop = jax.jit(looped(run, case.varied, case.states, turns), donate_argnums=donated)
    program.loop = loop.lower(types[case.varied], *types).compile()
    return program


def _program(program: "Future[Compiled]") -> Compiled:
    if not program.done():
        raise NotRun("not compiled in time")
    compiled = program.result()
    if compiled.lowered is None:
        raise NotRun("no kernel takes this size: the plain form runs")
    return compiled


def compare_case(
    case: KernelCase, program: "Future[Compiled]", records: Records, repeats: int = REPEATS
) -> dict[str, Any]:
    """Compare a kernel with float64 and with itself.

    Args:
        case: the operation.
        program: of the case.
        records: for arrays of a failure.
        repeats: runs to compare with the first one, bit by bit.

    Raises:
        Failure: a number is wrong, or a repeat has other bits.
    """
    single = _program(program).single
    assert single is not None
    operands = jax.jit(case.operands)()
    results = as_tuple(single(*operands))
    error = max(_error(result, exact) for result, exact in case.compared(operands, results))
    differing = [jnp.asarray(_differ(results, as_tuple(single(*operands)))) for _ in range(repeats)]
    total = sum(map(bool, differing))
    figures = {"error": error, "repeats with other bits": total}
    if not error <= MAX_ERROR or total:
        pairs = case.compared(operands, results)
        sides = {
            f"{name} {number}": pair[place] for number, pair in enumerate(pairs) for place, name in enumerate(NAMES)
        }
        records.write_arrays(case.name, sides)
        raise Failure(f"expected an error of at most {MAX_ERROR:.0e} and equal bits, got {figures}", figures)
    return figures


NAMES = ("result", "exact")


def _error(result: Any, exact: np.ndarray) -> float:
    """Return the largest difference over the largest number; infinity where a number is not finite."""
    difference = np.abs(np.asarray(result, np.float64) - exact)
    return float(np.max(difference) / max(np.max(np.abs(exact)), 1e-30)) if np.isfinite(difference).all() else np.inf


@jax.jit
def _differ(item: Any, other: Any) -> Any:
    """Return whether any bit of two results differs."""
    words = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
    pairs = [[array.view(words[array.dtype.itemsize]) for array in pair] for pair in zip(item, other, strict=True)]
    return jnp.any(jnp.stack([jnp.any(first != second) for first, second in pairs]))


def _keep(case: KernelCase, program: "Future[Compiled]", records: Records) -> None:
    if program.done() and program.exception() is None and (lowered := program.result().lowered) is not None:
        keep_program(records, case.name, lowered)


def _timed(program: Compiled | None, target: Target, turns: int) -> dict[str, Any]:
    if program is None or program.loop is None:
        raise NotRun("the kernel is wrong or was not compiled")
    case, operands = program.case, jax.jit(program.case.operands)()
    seconds = loop_seconds(program.loop, operands, case.varied, case.states, turns)
    figures = {"us": 1e6 * seconds, "GB/s": case.moved / seconds / 1e9}
    if target.bandwidth:
        figures["x floor"] = seconds * target.bandwidth / case.moved
    return figures
