"""Compilation of every step of an engine ahead of its first use."""

import time
from concurrent.futures import ThreadPoolExecutor, as_completed

from hybridlm.devices.machine import cores
from hybridlm.engine.engine import Engine
from hybridlm.programs.shapes import AnyShape
from hybridlm.progress import counting_progress
from ir_passes.files.user_warnings import warn_user

COMPILE_SECONDS = 120.0
"""Budget of one step, from tracing to certificate; a warning names slower steps."""


def warm_up(engine: Engine, every_bucket: bool, progress: bool | None) -> dict[str, float]:
    """See `LM.warmup`."""
    shapes, seconds = all_shapes(engine, only_full=not every_bucket), dict[str, float]()

    def compiled(shape: AnyShape) -> tuple[str, float]:
        start = time.perf_counter()
        engine.programs.compiled(shape, engine.example_arguments)
        return str(shape), time.perf_counter() - start

    with (
        engine.command("warm up", every_bucket=every_bucket),
        counting_progress(progress, "compiling", len(shapes)) as report,
        ThreadPoolExecutor(cores()) as pool,
    ):
        # Model steps take longest and come first; the moves of states fill the gaps.
        waiting = [pool.submit(compiled, shape) for shape in shapes]
        try:
            for future in as_completed(waiting):
                name, took = future.result()
                seconds[name] = took
                report(len(seconds), name)
        finally:
            for future in waiting:
                future.cancel()
    slow = [f"{name}: {took:.0f} s" for name, took in seconds.items() if took > COMPILE_SECONDS]
    if slow:
        warn_user(
            f"steps that took longer than {COMPILE_SECONDS:.0f} s to compile: {', '.join(slow)}; a compilation cache "
            "(see hybridlm.load) keeps them between processes",
        )
    return {str(shape): seconds[str(shape)] for shape in shapes}


def first_shapes(engine: Engine) -> list[AnyShape]:
    """Return the first steps of a `generate` call: all lanes, then one sequence."""
    single = engine.bucket(1, engine.prefill_lanes), engine.bucket(1, engine.lanes)
    shapes: list[AnyShape] = []
    for prefill, decode in ((engine.prefill_lanes, engine.lanes), single):
        shapes += [engine.shape("generate", prefill, engine.chunk), engine.shape("generate", decode, 1)]
    # A single prompt is often short.
    shapes += [engine.shape("generate", single[0], width) for width in engine.widths]
    return list(dict.fromkeys(shapes))


def all_shapes(engine: Engine, only_full: bool = False, drafts: bool = False) -> list[AnyShape]:
    """Return all step shapes: prefill, decode, verification, scoring, and moves of states.

    Steps with log-probabilities or a processor are compiled on first use.

    Args:
        only_full: the largest number of lanes; moves only with a prefix cache.
        drafts: include verifying steps in any case.
    """
    prefill = [engine.prefill_lanes] if only_full else engine.prefill_sizes
    decode = [engine.lanes] if only_full else engine.buckets(engine.lanes)
    widths = [engine.chunk] if only_full else engine.widths
    shapes: list[AnyShape] = []
    shapes += [engine.shape("generate", lanes, width) for lanes in prefill for width in widths]
    shapes += [engine.shape("generate", lanes, 1) for lanes in decode]
    if engine.options.drafts or (drafts and not engine.row_arrays.model.without_commit()):
        shapes += [engine.shape("generate", lanes, 1, mtp_drafts=engine.mtp_drafts) for lanes in decode]
        shapes += map(engine.verify_shape, decode)
    shapes += [engine.shape("score", lanes, width, top=0) for lanes in prefill for width in engine.widths]
    if not only_full or engine.prefix_cache is not None:
        shapes += engine.moves.shapes(engine.rows, engine.pages(engine.rows))
    return list(dict.fromkeys(shapes))
