"""Prompts with cached prefixes equal cold prompts after eviction, moves and deletion."""

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kept_states import assert_agree, assert_kept_agrees, empty_cache
from model_inputs import active_sequence
from text_checkpoint import SETTINGS

import hybridlm
from hybridlm.prefix_cache.budget import cache_budget
from hybridlm.prefix_cache.cache import PrefixCache
from hybridlm.prefix_cache.radix_tree import TreeError
from models import KV_BLOCK

RNG = np.random.default_rng(5)
FIRST = iter(RNG.permutation(np.arange(3, 90)).tolist())
CHUNK = SETTINGS["chunk"]
FREE: dict[str, Any] = {"max_tokens": 4, "ignore_eos": True}
TOLERANCE = 1e-4


def ids(count: int) -> list[int]:
    return RNG.integers(3, 90, count).tolist()


def new(count: int) -> list[int]:
    """Return tokens with a first token that no other prompt has."""
    return [next(FIRST), *ids(count - 1)]


def gained(lm: hybridlm.LM, stats: dict[str, int], *names: str) -> tuple[int, ...]:
    return tuple(lm.stats[name] - stats[name] for name in names)


def cache_of(lm: hybridlm.LM) -> PrefixCache:
    assert lm.engine.prefix_cache is not None
    return lm.engine.prefix_cache


@pytest.fixture
def cached(cached_lm: hybridlm.LM) -> Iterator[hybridlm.LM]:
    """The model with an empty cache."""
    yield empty_cache(cached_lm, "600kB")
    cache_of(cached_lm).check_integrity()


@pytest.mark.slow
@pytest.mark.parametrize("length", range(1, 2 * CHUNK + 4))
def test_cold_and_warm_agree(text_lm: hybridlm.LM, cached: hybridlm.LM, length: int) -> None:
    """A conversation continues from its prompt's end; the same prompt from its last step."""
    begins, suffix = new(length), ids(CHUNK + 1)
    stats = dict(cached.stats)
    for prompt in (begins, begins + suffix, begins + suffix):
        (got,), (want,) = cached.generate([prompt], **FREE), text_lm.generate([prompt], **FREE)
        assert_agree(text_lm, got, want)
        assert_kept_agrees(text_lm, cached, prompt, TOLERANCE)
    # One more token than a chunk is left: the last step reads one token.
    assert gained(cached, stats, "prefix_tokens_saved") == (length + length + CHUNK,)
    assert gained(cached, stats, "prompt_tokens") == (length + CHUNK + 1 + 1,)


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_the_same_grid_gives_the_same_bits(text_lm: hybridlm.LM, cached: hybridlm.LM, chunks: int) -> None:
    """After whole chunks the bits equal a prompt that is prefilled at once."""
    begins, stats = new(chunks * CHUNK), dict(cached.stats)
    cached.generate([begins], **FREE)
    for count in (1, CHUNK + 2):
        prompt = [*begins, 80 + count, *ids(count - 1)]
        assert cached.generate([prompt], **FREE) == text_lm.generate([prompt], **FREE)
        assert_kept_agrees(text_lm, cached, prompt, 0.0)
    assert gained(cached, stats, "prefix_tokens_saved") == (2 * chunks * CHUNK,)


def test_a_prompt_that_leaves_what_is_known_is_cut_there(text_lm: hybridlm.LM, cached: hybridlm.LM) -> None:
    """The first prompt caches its end, the second the branch, the third continues there."""
    common, stats = new(2 * CHUNK + 3), dict(cached.stats)
    for i, (count, consumed) in enumerate(((8, 21), (3, 16), (4, 4), (1, 1))):
        prompt = [*common, 90 + i, *ids(count - 1)]
        stats_now = dict(cached.stats)
        assert_agree(text_lm, cached.generate([prompt], **FREE)[0], text_lm.generate([prompt], **FREE)[0])
        assert gained(cached, stats_now, "prompt_tokens") == (consumed,)
    assert gained(cached, stats, "prefix_hits", "prefix_tokens_saved") == (2, 2 * len(common))
    # A branch that saves no step is not worth one.
    short = new(CHUNK - 1)
    for i in range(3):
        stats_now = dict(cached.stats)
        cached.generate([[*short, 90 + i, *ids(CHUNK - 1)]], **FREE)
        assert gained(cached, stats_now, "prefix_hits", "prompt_tokens") == (0, 2 * CHUNK - 1)


@pytest.mark.slow
def test_prompts_of_one_call_that_begin_alike_share_it(text_lm: hybridlm.LM, cached: hybridlm.LM) -> None:
    """One prompt is read to the common end; the others wait and continue there."""
    common, stats = new(3 * CHUNK + 2), dict(cached.stats)
    prompts = [[*common, 85 + i, *ids(i % 4)] for i in range(9)]
    for got, want in zip(cached.generate(prompts, **FREE), text_lm.generate(prompts, **FREE), strict=True):
        assert_agree(text_lm, got, want)
    hits, saved = gained(cached, stats, "prefix_hits", "prefix_tokens_saved")
    assert hits == 8 and saved >= 8 * 3 * CHUNK, "to within a chunk"


def test_a_state_adds_the_pages_from_its_first_new_position_on(cached: hybridlm.LM) -> None:
    prompt, cache, engine = new(CHUNK + 3), cache_of(cached), cached.engine
    cached.generate([prompt[:3]], **FREE)
    cached.generate([prompt], **FREE)
    for position, known, pages in (
        (3, 3, 0),
        (4, 3, 1),
        (3 + KV_BLOCK, 3, 2),
        (2 * KV_BLOCK, KV_BLOCK, 1),
        (130, 129, 1),
    ):
        added = engine.moves.state_bytes + pages * engine.moves.span_bytes
        assert engine.moves.bytes_of(position, known) == added
    pool = engine.new_pool(1)
    slot = pool.acquire(engine.context)
    with cache.pinned([*prompt, 5], None) as snapshot:
        assert snapshot is not None and [(span.first, span.count) for span in snapshot.spans] == [(0, 3), (3, CHUNK)]
        engine.moves.restore(snapshot, pool, slot, [*prompt, 5], owner=None)
    for layout, leaf in zip(engine.kind.layout, jax.tree.leaves(pool.look()), strict=True):
        if layout.positions is not None:
            pages = np.moveaxis(np.asarray(leaf), layout.positions + 1, 1)[1:]  # after the null page, in their order
            row = pages.reshape((-1, *pages.shape[2:]))
            assert row[: len(prompt)].any(axis=(1, 2)).all() and not row[len(prompt) :].any()


class Nothing:
    grows, state_bytes, span_bytes, copied = True, 1, 1, None


def test_long_prompts_leave_states_on_the_way() -> None:
    cache = PrefixCache(Nothing(), cache_budget(10), 4)  # type: ignore[arg-type]  # a stand-in
    assert cache.stops(range(70), 0) == (32, 64, 68, 70)
    assert cache.stops(range(70), 30) == (34, 66, 70), "the first end of a step at or after every 8 chunks"
    assert cache.stops(range(8), 0) == (4, 8) and cache.stops(range(3), 0) == (3,)
    assert cache.stops(range(9), 8) == (9,), "the state that it goes on from is there"


def test_prompts_wait_for_what_another_one_reads() -> None:
    cache = PrefixCache(Nothing(), cache_budget(10), 4)  # type: ignore[arg-type]  # a stand-in
    other = active_sequence(range(40), stops=(32, 36, 40))
    assert not cache.should_wait([*range(3), 99, 98], [other]), "less than a chunk together"
    assert cache.should_wait([*range(38), 99], [other]) and other.stops == (32, 36, 40), "it goes on from 36"
    assert cache.should_wait(range(40), [other]) and other.stops == (32, 36, 40), "one token of the same prompt is left"
    assert cache.should_wait([*range(20), 99], [other]) and other.stops == (20, 32, 36, 40)
    other.consumed = 20
    assert not cache.should_wait([*range(20), 99], [other]) and not cache.should_wait([*range(19), 99], [other])
    assert cache.should_wait([*range(30), 99], [other]) and other.stops == (20, 30, 32, 36, 40)
    other.consumed = 36
    assert not cache.should_wait(range(40), [other]) and not cache.should_wait([*range(35), 99], [])


def test_a_conversation_goes_on_from_the_answer(text_lm: hybridlm.LM, cached: hybridlm.LM) -> None:
    """An answer is cached with its stop token; a cut answer is read again."""
    first = new(7)
    (answer,) = text_lm.generate([first], max_tokens=12, ignore_eos=True)
    stop = answer.token_ids[5]
    length = answer.token_ids.index(stop) + 1
    (got,) = cached.generate([first], max_tokens=12, ignore_eos=True, stop=[stop])
    assert got.finish_reason == "stop" and len(got.token_ids) == length
    stats, second = dict(cached.stats), [*first, *got.token_ids, *ids(3)]
    assert_agree(text_lm, cached.generate([second], **FREE)[0], text_lm.generate([second], **FREE)[0])
    assert gained(cached, stats, "prefix_tokens_saved") == (len(first) + length,)


def test_an_explicit_prefix_works_as_before(text_lm: hybridlm.LM, cached: hybridlm.LM) -> None:
    """The deeper of the two is gone on from."""
    begins, tails = new(13), [ids(4), ids(2 * CHUNK)]
    prefix = cached.prefix(begins)
    for saved in ((12, 12), (12, 12 + 2 * CHUNK)):
        for tail, count in zip(tails, saved, strict=True):
            stats = dict(cached.stats)
            (got,) = cached.generate([tail], prefix=prefix, **FREE)
            assert_agree(text_lm, got, text_lm.generate([begins + tail], **FREE)[0])
            assert gained(cached, stats, "prefix_tokens_saved") == (count,)


def test_a_state_that_led_to_nan_is_not_used_again(text_lm: hybridlm.LM, cached: hybridlm.LM) -> None:
    prompt = new(2 * CHUNK + 1)

    def poison(rows: Any, owners: list[Any]) -> Any:
        return rows._replace(layers=jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), rows.layers))

    cached.engine.after_step = poison
    try:
        with pytest.raises(hybridlm.NumericalError):
            cached.generate([prompt], **FREE)
    finally:
        cached.engine.after_step = None
    assert_agree(text_lm, cached.generate([prompt], **FREE)[0], text_lm.generate([prompt], **FREE)[0])
    assert_agree(text_lm, cached.generate([prompt], **FREE)[0], text_lm.generate([prompt], **FREE)[0])


def test_what_is_lent_cannot_be_dropped(text_lm: hybridlm.LM, cached: hybridlm.LM) -> None:
    cache, prompt = cache_of(cached), new(7)
    cached.generate([prompt], **FREE)
    with cache.pinned([*prompt, 5], None) as snapshot:
        assert snapshot is not None and snapshot.state is not None
        buffers = [snapshot.state, *(piece.buffer for piece in snapshot.spans)]
        assert all(buffer.refcount == 1 for buffer in buffers)
        with pytest.raises(TreeError, match="at position 7 cannot be dropped while it is in use"):
            cache._drop(snapshot.state)
        while cache._memory.evict_one():
            assert all(buffer.on_device for buffer in buffers)
        with cache.pinned([*prompt, 6], None) as match:
            assert match is not None and match.state is snapshot.state and snapshot.state.refcount == 2
    assert not any(buffer.refcount for buffer in buffers)
    assert cached.stats["prefix_device_bytes"] == sum(buffer.nbytes for buffer in buffers), "all others have gone"
    assert cache._memory.evict_one() and not all(buffer.on_device for buffer in buffers)


def test_states_of_another_position_tokens_or_model_are_refused(cached: hybridlm.LM) -> None:
    """Label and every part of a state are checked before a row changes."""
    engine, cache, prompt = cached.engine, cache_of(cached), new(140)
    cached.generate([prompt], **FREE)
    pool = engine.new_pool(1)
    slot = pool.acquire(engine.context)
    with cache.pinned([*prompt, 5], None) as snapshot:
        assert snapshot is not None and snapshot.state is not None and len(snapshot.spans) > 1
        spans, kind = snapshot.spans, dataclasses.replace(snapshot.kind, model="another")
        other = copy.copy(snapshot.state)
        other.position, other.mark = 139, None
        shifted = spans[-1]._replace(first=spans[-1].first + 1)
        for change, message in (
            ({"kind": kind}, "model: expected .*, got another"),
            ({"position": 139}, "expected 139 positions, got 140"),
            ({"tokens": "00"}, "made from other tokens than the sequence begins"),
            ({"state": other}, "state: expected one at position 140, got CachedBuffers.* at position 139"),
            ({"spans": spans[1:]}, "keys and values: expected position 0, got "),
            ({"spans": spans[:-1]}, "expected 140 positions, got "),
            ({"spans": (*spans[:-1], shifted)}, "expected position .*, got"),
            ({"spans": ()}, "expected 140 positions, got 0"),
        ):
            with pytest.raises(hybridlm.SnapshotError, match=message):
                engine.moves.restore(dataclasses.replace(snapshot, **change), pool, slot, [*prompt, 5], owner=None)
        with pytest.raises(hybridlm.SnapshotError, match="made from other tokens"):
            engine.moves.restore(snapshot, pool, slot, [4, *prompt], owner=None)
        assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(pool.look()))
        assert engine.moves.restore(snapshot, pool, slot, [*prompt, 5], owner=None) == 140


def test_budgets(text_lm: hybridlm.LM) -> None:
    assert cache_budget("512MB") == (512 * 10**6,) * 2 and cache_budget("1.5 gib") == (3 << 29, 3 << 29)
    assert cache_budget(12345) == (12345, 12345) == cache_budget({"device": 12345})
    assert cache_budget({"device": "2kB", "host": 0}) == (2000, 0)
    for wrong, message in (
        ("512", "expected bytes as a whole number, or a string like .* got '512'"),
        ("MB", "got 'MB'"),
        ("5 XB", "units B, kB, MB"),
        ("-5MB", "got '-5MB'"),
        (-1, "got -1"),
        ({"host": "1MB"}, 'expected a size, or a dict of "device"'),
        ({"device": 1, "disk": 1}, "'disk': 1"),
        ({"device": 1, "host": "x"}, r"prefix_cache\['host'\]: expected"),
    ):
        with pytest.raises(ValueError, match=message):
            cache_budget(wrong)
    for wrong in (1.5, True, None, ["1MB"]):
        with pytest.raises(TypeError, match="prefix_cache: expected bytes as a whole number"):
            cache_budget(wrong)
    moves = text_lm.engine.moves
    minimum = moves.state_bytes + moves.span_bytes
    with pytest.raises(ValueError, match=f"hold no state of this model.* the smallest needs {minimum:,} B"):
        hybridlm.load(text_lm.path, prefix_cache=minimum - 1, **SETTINGS)
    with pytest.raises(ValueError, match="got 'a lot'"):
        hybridlm.load(text_lm.path, prefix_cache="a lot", **SETTINGS)
