"""Pages of KV caches: their number, places of tokens, pages of a window, sizes of blocks and rows."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hybridlm.families import AttentionConfig
from models import Devices
from models.state.pages import KV_BLOCK, kv_blocks, own_pages, token_places, window_pages
from models.state.state import state_size, stored_size, turn_blocks


def test_kv_blocks_counts_whole_blocks() -> None:
    assert [kv_blocks(n) for n in (0, 1, KV_BLOCK, KV_BLOCK + 1)] == [0, 1, 1, 2]


def test_blocks_visited_at_a_time_are_as_many_as_the_cache_has() -> None:
    assert [turn_blocks(n, "gpu", 64) for n in (2, 3, 4, 5, 6, 8, 33)] == [2, 3, 4, 4, 4, 4, 4]
    sizes = {(5, 16): 5, (33, 16): 16, (61, 1): 61, (131, 1): 128, (61, 3): 42, (1024, 2): 64, (1024, 64): 4}
    assert {(n, heads): turn_blocks(n, "gpu", heads) for n, heads in sizes} == sizes
    assert [turn_blocks(256, "gpu", heads) for heads in (1, 2, 8, 15, 16, 32, 63, 64)] == [
        128, 64, 16, 8, 16, 16, 16, 4,
    ]  # fmt: skip
    assert {turn_blocks(n, platform, 2) for n in (2, 4, 32) for platform in ("cpu", "tpu")} == {1}


def test_places_of_tokens_are_distinct() -> None:
    """Without a page: padding, tokens after the table, before the first position, and on the null page."""
    pages = own_pages(2, 3)
    index = np.array([[0, 127, 1, 2], [5, 6, 7, KV_BLOCK]], np.int32)
    valid = np.array([[True, True, False, True], [True] * 4])
    index[0, 3] = -1
    for table, with_page in ((pages, [[True, True, False, False], [True, True, True, False]]),
                             (pages.at[1].set(0), [[True, True, False, False], [False] * 4])):  # fmt: skip
        page, place = (np.asarray(part) for part in token_places(table, jnp.asarray(index), jnp.asarray(valid), 3))
        assert len({*zip(page.ravel().tolist(), place.ravel().tolist(), strict=True)}) == page.size
        np.testing.assert_array_equal(page < 3, with_page)
        for lane, token in np.argwhere(np.array(with_page)):
            assert (page[lane, token], place[lane, token]) == (1 + lane, index[lane, token])


def test_a_tpu_stores_whole_rows_of_a_tile() -> None:
    """XLA:TPU would turn caches of other sizes, and copy them in every step."""
    assert [stored_size(size, "tpu") for size in (1, 64, 128, 576)] == [128, 128, 128, 640]
    assert {stored_size(size, platform) for size in (1, 576) for platform in ("cpu", "gpu")} == {1, 576}
    layer = nnx.eval_shape(lambda: AttentionConfig(4, 2, 64, devices=Devices(platform="tpu")).build(16, nnx.Rngs(0)))
    size = state_size([layer], jnp.bfloat16)
    assert (size.token, size.unused) == (2 * 2 * 128 * 2, 2 * 2 * 64 * 2)
    arrays = jax.eval_shape(lambda: layer.init_state(3, 256, jnp.bfloat16))
    assert [array.shape for array in arrays] == [(7, 2, 128, 128)] * 2


def test_a_window_needs_as_many_pages_in_any_context() -> None:
    """The cost of a step follows from the window and its tokens, whatever the context."""
    positions = jnp.asarray([[0, 1], [127, 128], [300, 301], [4000, 4001]], jnp.int32)
    table = 1 + jnp.arange(4 * 32, dtype=jnp.int32).reshape(4, 32)
    pages, shifted = window_pages(table, positions, 130)
    # 131 positions are in at most three pages; those of the last lane are the last of its table.
    first = np.array([0, 0, 1, 29])
    np.testing.assert_array_equal(shifted, positions - KV_BLOCK * first[:, None])
    np.testing.assert_array_equal(pages, np.asarray(table)[np.arange(4)[:, None], first[:, None] + np.arange(3)])
    for blocks in (2, 3):
        few = table[:, :blocks]
        assert window_pages(few, positions, 130)[0] is few
