"""Kernels of recurrences read and write the rows and chunks of lanes with tokens, counted in their programs."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from card_kernels import array
from counted_kernels import counted, counted_kernel
from recurrence_cases import FORMS, inputs, several

from models import Devices
from models.ops.recurrences.chunk_scan_gpu import MAX_ROWS
from models.ops.recurrences.delta_rule import delta_rule
from models.ops.recurrences.recurrence import RecurrenceInputs
from models.ops.recurrences.recurrent_step_gpu import recurrent_step

GPU = Devices(platform="gpu", kernels="auto")


@pytest.mark.each_value
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_recurrences_read_and_write_the_rows_of_their_lanes(form: str, tokens: int) -> None:
    """And nothing else of a pool; an idle lane's row is neither read nor written."""
    settings = inputs(form, 64, 16) if tokens == 1 else several(form, 64, 16)
    row = 4 * settings.state[0].size
    pool = array(100, *settings.state.shape[1:])
    fields = {name: array(*leaf.shape, dtype=leaf.dtype) for name, leaf in vars(settings).items() if leaf is not None
              and hasattr(leaf, "shape")}  # fmt: skip

    def run(slots: Any, pool: Any, fields: Any) -> Any:
        return tuple(recurrent_step(RecurrenceInputs(**{**fields, "state": pool}, slots=slots), interpret=False))

    lanes = len(settings.valid)
    types = array(lanes, dtype=jnp.int32), pool, fields
    for active in (lanes, 1):
        valid = np.broadcast_to(np.arange(lanes)[:, None] < active, (lanes, tokens))
        values = [None, None, *(valid if name == "valid" else None for name in sorted(fields))]
        result = counted_kernel(run, types, tuple(values))
        number = result.shapes.index(pool.shape)
        assert result.loaded[number] == result.stored[1] == active * row


@pytest.mark.parametrize("lengths", [(0, 1, 32, 33, 96), (96,) * 5, (0,) * 5])
def test_prompts_read_the_chunks_of_their_lengths(lengths: tuple[int, ...]) -> None:
    """Values and keys of chunks with real tokens; all outputs are written, and the rows of lanes with tokens alone."""
    tokens, heads, size, chunk = 96, 2, 32, 32
    lanes = len(lengths)
    vectors, gates = array(lanes, tokens, heads, size), array(lanes, tokens, heads)

    def run(
        valid: Any, fresh: Any, query: Any, key: Any, value: Any, decay: Any, beta: Any, pool: Any, slots: Any
    ) -> Any:
        return tuple(delta_rule(RecurrenceInputs(query, key, value, decay, pool, valid, fresh, beta, GPU, slots)))

    valid = np.arange(tokens)[None] < np.array(lengths)[:, None]
    pool = array(9, heads, size, size)
    types = array(lanes, tokens, dtype=jnp.bool_), array(lanes, dtype=jnp.bool_), *[vectors] * 3, gates, gates, pool
    types += (array(lanes, dtype=jnp.int32),)
    values = valid, np.zeros(lanes, bool), *[None] * 7
    kernels = counted(run, types, values)
    (result,) = [item for item in kernels if "scan" in item.name]
    chunks = sum(-(-length // chunk) for length in lengths)
    places = (lanes, tokens // chunk, chunk, heads, size)
    numbers = [number for number, shape in enumerate(result.shapes) if shape == places]
    tiles = size // MAX_ROWS
    tile_bytes = 4 * chunks * chunk * heads * size
    # keys in products, of reads and of writes, and queries are read by each tile; a tile reads its part of the values
    assert [result.loaded[number] for number in numbers] == [tiles * tile_bytes, 2 * tiles * tile_bytes, tile_bytes]
    row = 4 * heads * size * size
    assert result.loaded[result.shapes.index(pool.shape)] == np.count_nonzero(lengths) * row
    assert result.stored == (4 * lanes * tokens * heads * size, np.count_nonzero(lengths) * row)
    (products,) = [item for item in kernels if "products" in item.name]
    assert products.loaded[1:] == (4 * chunks * chunk * heads * size,) * 2, "queries, and keys"
