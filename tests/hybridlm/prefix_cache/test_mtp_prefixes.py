"""Cached states of models that draft with their head."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from head_checkpoints import write_agreeing

import hybridlm
from hybridlm.prefix_cache.moves import buffers_by_block
from models import KV_BLOCK

LOADED: dict[str, Any] = {"lanes": 3, "context": 150, "dtype": "float32", "chunk": 16, "draft_tokens": 3}


@pytest.mark.long
@pytest.mark.parametrize(("first", "last"), [(7, 40), (128, 140), (127, 129), (129, 140)])
def test_the_last_span_of_a_page_has_final_values(tmp_path: pathlib.Path, first: int, last: int) -> None:
    """An earlier span held its last position while that waited for the next token; its page may be full."""
    lm = hybridlm.load(write_agreeing(tmp_path), speculate="mtp", prefix_cache="64MB", **LOADED)
    engine, prompt = lm.engine, np.random.default_rng(145).integers(3, 93, size=last).tolist()
    for count in (first, last):
        lm.generate([prompt[:count]], max_tokens=4, ignore_eos=True)
    pool = engine.new_pool(1)
    slot = pool.acquire(len(prompt))
    assert engine.prefix_cache is not None
    with engine.prefix_cache.pinned([*prompt, 5], None) as snapshot:
        assert snapshot is not None and snapshot.position == last
        final = buffers_by_block(snapshot.spans).values()
        earlier = [span.buffer for span in snapshot.spans if span.buffer not in final]
        assert earlier and all(buffers.page is None for buffers in earlier)
        for buffers in earlier:
            buffers.arrays = tuple(jnp.full_like(array, jnp.nan) for array in map(jnp.asarray, buffers.arrays))
        assert sum(buffers.page is not None for buffers in final) == (last > KV_BLOCK)
        engine.moves.restore(snapshot, pool, slot, [*prompt, 5], owner=None)
    for layout, leaf in zip(engine.kind.layout, jax.tree.leaves(pool.look()), strict=True):
        if layout.positions is not None:
            pages = np.moveaxis(np.asarray(leaf), layout.positions + 1, 1)[1:]
            positions = pages.reshape((-1, *pages.shape[2:]))[: len(prompt)]
            assert np.isfinite(positions).all() and positions[:-1].any(axis=(1, 2)).all()
