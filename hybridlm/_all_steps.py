"""Every step that an engine runs, with arguments to compile it for."""

from typing import Any

import jax
import numpy as np

from hybridlm._batch import Batch, sampling_arrays
from hybridlm._engine import Engine
from hybridlm._programs import Shape, lane_rung


def all_shapes(engine: Engine, only_full: bool = False) -> list[Shape]:
    """The shapes of generation (consuming prompts, and one token at a time) and of scoring, for every number of lanes.

    Requests with log-probabilities or a logits processor of the user's have steps of their own, compiled on first use.

    Args:
        only_full: for the largest number of lanes alone.
    """
    rungs = sorted({lane_rung(count, engine.lanes) for count in range(1, engine.lanes + 1)})
    shapes = [
        shape
        for lanes in (rungs[-1:] if only_full else rungs)
        for shape in (
            Shape("generate", lanes, engine.chunk),
            Shape("generate", lanes, 1),
            Shape("score", lanes, engine.chunk, 0),
        )
    ]
    return list(dict.fromkeys(shapes))


def example_arguments(engine: Engine, shape: Shape) -> tuple[Any, ...]:
    """Arguments as the engine passes them, with pools that are types alone."""
    batch = Batch.of([None] * shape.lanes, shape.tokens)
    pools = jax.eval_shape(lambda: engine._new_pools(shape.lanes))
    common = (engine.params, pools, batch.tokens, batch.lengths, batch.positions, np.int32(1))
    if shape.step == "score":
        return (*common, np.zeros((shape.lanes, shape.tokens), np.int32))
    return (*common, *sampling_arrays([None] * shape.lanes))
