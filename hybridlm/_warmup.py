"""Compiling every step of a model ahead of its first use."""

import time
import warnings
from concurrent.futures import ThreadPoolExecutor, as_completed

from hybridlm._all_steps import all_shapes
from hybridlm._engine import Engine
from hybridlm._machine import cores
from hybridlm._plan import Operation
from hybridlm._programs import AnyShape
from hybridlm._progress import counting_progress

COMPILE_SECONDS = 120.0
"""Budget of one step, from tracing to its certificate; what takes longer is named in a warning."""


def warm_up(engine: Engine, every_bucket: bool, progress: bool | None) -> dict[str, float]:
    """See `LM.warmup`."""
    if engine.calls.crew is not None:
        engine.calls.crew.tell(Operation("warm up", (int(every_bucket),)))
    shapes = all_shapes(engine, only_full=not every_bucket)
    seconds: dict[str, float] = {}

    def compiled(shape: AnyShape) -> tuple[str, float]:
        start = time.perf_counter()
        engine.program(shape)
        return str(shape), time.perf_counter() - start

    with counting_progress(progress, "compiling", len(shapes)) as done, ThreadPoolExecutor(cores()) as pool:
        # The steps of the model take the longest; the moves of rows fill the gaps.
        waiting = [pool.submit(compiled, shape) for shape in shapes]
        try:
            for one in as_completed(waiting):
                name, took = one.result()
                seconds[name] = took
                done(len(seconds), name)
        finally:
            for one in waiting:
                one.cancel()
    slow = [f"{name}: {took:.0f} s" for name, took in seconds.items() if took > COMPILE_SECONDS]
    if slow:
        warnings.warn(
            f"steps that took longer than {COMPILE_SECONDS:.0f} s to compile: {', '.join(slow)}; a compilation cache "
            "(see hybridlm.load) keeps them between processes",
            stacklevel=3,
        )
    return {str(shape): seconds[str(shape)] for shape in shapes}
