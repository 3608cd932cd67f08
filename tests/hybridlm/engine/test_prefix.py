"""Prompts and texts behind a prefix: cold equals warm, and wrong states are refused."""

import copy
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kept_states import assert_agree

import hybridlm
from hybridlm.engine.prefix import _arrays as arrays

IDS = np.random.default_rng(0).integers(3, 90, 60).tolist()
CONTINUATIONS = [IDS[40:41], IDS[41:46], IDS[46:60], IDS[44:48]]
FREE: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True}


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6, 10, 11, 12, 30])
def test_cold_and_warm_agree(text_lm: hybridlm.LM, length: int) -> None:
    """Completions and scores behind a prefix, about the kernel of the convolution (4) and the chunk (5)."""
    tokens, lm = IDS[:length], text_lm
    prefix = lm.prefix(tokens)
    joined = [tokens + ids for ids in CONTINUATIONS]
    for got, want in zip(lm.generate(CONTINUATIONS, prefix=prefix, **FREE), lm.generate(joined, **FREE), strict=True):
        assert_agree(lm, got, want)
    for got, want in zip(lm.score(CONTINUATIONS, prefix=prefix), lm.score(joined), strict=True):
        assert got.token_ids == want.token_ids[length:] and got.prefix_tokens == length
        np.testing.assert_allclose(got.logprobs, want.logprobs[length:], rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [1, 2, 5])
def test_the_same_grid_gives_the_same_bits(text_lm: hybridlm.LM, chunks: int) -> None:
    """Behind whole chunks the state equals a full prompt in equal step shapes."""
    lm, engine = text_lm, text_lm.engine
    count = chunks * engine.chunk
    prefix = lm.prefix(IDS[: count + 1])
    with lm.session() as session:
        session.submit(IDS[:40], max_tokens=1)
        for _ in range(chunks):
            session.step()
        (sequence,), pool = session._scheduler.joined, session._scheduler._pool
        assert pool is not None and sequence.slot is not None
        cold = engine.moves.take(pool, sequence.slot, IDS[:count], owner=sequence)
    for part, first, second in zip(engine.kind.layout, arrays(cold), arrays(prefix.snapshot), strict=True):
        assert first.tobytes() == second.tobytes(), part
    assert lm.generate([IDS[count + 1 : 40]], prefix=prefix, **FREE) == lm.generate([IDS[:40]], **FREE)


def test_the_tokens_of_a_prefix_are_processed_once(text_lm: hybridlm.LM) -> None:
    stats = dict(text_lm.stats)
    prefix = text_lm.prefix(IDS[:40])
    text_lm.generate(CONTINUATIONS * 3, prefix=prefix, n=2, max_tokens=1)
    text_lm.score(CONTINUATIONS, prefix=prefix)
    gained = {name: text_lm.stats[name] - stats[name] for name in stats}
    count = sum(len(ids) for ids in CONTINUATIONS)
    assert gained["prompt_tokens"] == 39 + 6 * (count + 4)
    assert gained["scored_tokens"] == count
    assert gained["prefix_tokens_saved"] == 39 * (24 + 4)


@pytest.mark.slow
def test_samples_do_not_depend_on_how_the_prompt_was_given(text_lm: hybridlm.LM) -> None:
    settings = {"temperature": 1.3, "seed": 7, "n": 3, **FREE}
    prefix = text_lm.prefix(IDS[:11])
    warm = text_lm.generate(CONTINUATIONS, prefix=prefix, **settings)
    assert warm == text_lm.generate([IDS[:11] + ids for ids in CONTINUATIONS], **settings)
    assert len({tuple(c.token_ids) for c in warm}) > 6


def test_nothing_may_follow_the_prefix(text_lm: hybridlm.LM) -> None:
    prefix = text_lm.prefix(IDS[:11])
    (got,) = text_lm.generate([[]], prefix=prefix, **FREE)
    assert got == text_lm.generate([IDS[:11]], **FREE)[0] == text_lm.generate("", prefix=prefix, **FREE)[0]
    with pytest.raises(ValueError, match=r"texts\[1\]: is empty; at least one token is needed behind the prefix"):
        text_lm.score([[5], []], prefix=prefix)


def test_text_behind_a_prefix_has_no_special_tokens(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = text_lm.tokenizer
    assert tokenizer is not None
    plain = tokenizer.encode

    def encode(text: str, add_special_tokens: bool = True) -> list[int]:
        return [1, *plain(text)] if add_special_tokens else plain(text)

    monkeypatch.setattr(tokenizer, "encode", encode)
    (got,) = text_lm.generate("kite", prefix=text_lm.prefix("The "), max_tokens=1)
    assert got.prompt_token_ids == [1, *plain("The kite")]


def test_stream_and_submit_take_a_prefix(text_lm: hybridlm.LM) -> None:
    """Requests with and without one in a session, some cancelled, rows used again."""
    prefix = text_lm.prefix(IDS[:31])
    want = text_lm.generate(CONTINUATIONS, prefix=prefix, **FREE)
    events = list(text_lm.stream(CONTINUATIONS, prefix=prefix, **FREE))
    assert sorted((e.completion for e in events if e.completion), key=want.index) == want
    for cancelled in range(1, 9):
        with text_lm.session() as session:
            for ids in CONTINUATIONS:
                session.submit(ids, prefix=prefix, **FREE)
                session.submit(IDS[:31] + ids, **FREE)
            completions: dict[int, hybridlm.Completion] = {}
            for step in range(1000):
                if step == cancelled:
                    for index in set(range(8)) & {0, 1, 2, 6} - set(completions):
                        session.cancel(index)
                completions |= {e.index: e.completion for e in session.step() if e.completion}
                if not session.busy:
                    break
        for index, completion in completions.items():
            count = len(completion.token_ids)
            assert completion.token_ids == want[index // 2].token_ids[:count]
            assert count == 6 or completion.finish_reason == "cancelled"


def test_rows_that_hold_nan_and_neighbours_that_become_nan_change_no_bit(
    text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = text_lm.prefix(IDS[:31])
    want, scores = text_lm.generate(CONTINUATIONS, prefix=prefix, **FREE), text_lm.score(CONTINUATIONS, prefix=prefix)
    engine = text_lm.engine
    copies = arrays(prefix.snapshot)

    run, stepped = engine.run, list[Any]()

    def recorded(shape: Any, pool: Any, *args: Any, **about: Any) -> Any:
        stepped.append(pool)
        return run(shape, pool, *args, **about)

    def poison(rows: Any, owners: list[Any]) -> Any:
        pool, pages = stepped[-1], stepped[-1].page_owner
        assert pages is not None
        free_rows = np.array([row not in pool.owner.held for row in range(pool.size)])
        free_pages = np.array([page not in pages.held for page in range(pool.pages)])
        assert len(free_rows) != len(free_pages)
        free = {len(part): part for part in (free_rows, free_pages)}
        where = lambda leaf: free[len(leaf)].reshape((-1,) + (1,) * (leaf.ndim - 1))
        return rows._replace(layers=jax.tree.map(lambda leaf: jnp.where(where(leaf), jnp.nan, leaf), rows.layers))

    def full_of_nan() -> None:
        pool = engine.pool
        rows = pool.take()
        nan = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), rows.layers)
        pool.arrays = rows._replace(layers=nan, token=jnp.zeros_like(rows.token))

    full_of_nan()
    monkeypatch.setattr(engine, "run", recorded)
    engine.after_step = poison
    try:
        assert text_lm.generate(CONTINUATIONS, prefix=prefix, **FREE) == want
        full_of_nan()
        for got, expected in zip(text_lm.score(CONTINUATIONS, prefix=prefix), scores, strict=True):
            assert got.logprobs.tobytes() == expected.logprobs.tobytes()
    finally:
        engine.after_step = None
    for array, other in zip(arrays(prefix.snapshot), copies, strict=True):
        assert array.tobytes() == other.tobytes(), "a fork reads the snapshot and leaves it as it is"


def test_the_context_counts_the_prefix(text_lm: hybridlm.LM) -> None:
    context = text_lm.context
    prefix = text_lm.prefix([5] * (context - 3))
    for count in (1, 2, 3):
        (got,) = text_lm.generate([[6] * count], prefix=prefix, max_tokens=50, ignore_eos=True)
        assert len(got.token_ids) == 3 - count and got.finish_reason == "length"
    with pytest.raises(ValueError, match=r"prompts\[1\], with its prefix of 253,: has 257 tokens, the context holds"):
        text_lm.generate([[6], [6] * 4], prefix=prefix)
    (full,) = text_lm.generate([[]], prefix=text_lm.prefix([5] * context), max_tokens=50)
    assert full.token_ids == [] and full.finish_reason == "length"
    with pytest.raises(ValueError, match="prefix: has 257 tokens, the context holds 256"):
        text_lm.prefix([5] * (context + 1))
    with pytest.raises(ValueError, match="prefix: is empty; at least one token"):
        text_lm.prefix([])


def altered(prefix: hybridlm.Prefix, **kind: Any) -> hybridlm.Prefix:
    """Return the state with another label."""
    other = dataclasses.replace(prefix.snapshot.kind, **kind)
    return hybridlm.Prefix(prefix.token_ids, dataclasses.replace(prefix.snapshot, kind=other))


def test_a_prefix_on_other_devices_is_refused(text_lm: hybridlm.LM) -> None:
    """As one of the same model over a mesh; a file moves it."""
    prefix = text_lm.prefix(IDS[:9])
    state, mesh = prefix.snapshot.state, jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    assert state is not None
    state = copy.copy(state)
    state.arrays = jax.device_put(state.arrays, jax.NamedSharding(mesh, jax.P()))
    snapshot = dataclasses.replace(prefix.snapshot, state=state)
    with pytest.raises(hybridlm.SnapshotError, match="a state of 2 devices .*load_prefix"):
        text_lm.generate([IDS[9:]], prefix=dataclasses.replace(prefix, snapshot=snapshot), max_tokens=2)


def test_every_part_of_the_label_is_compared_by_itself(text_lm: hybridlm.LM) -> None:
    """Refuse a snapshot if one field of its label differs from the model."""
    kind = text_lm.engine.kind
    first = kind.layout[0]
    differences: dict[str, dict[str, Any]] = {
        r"model: expected \w+, got other": {"model": "other"},
        "dtype: expected float32, got bfloat16": {"dtype": "bfloat16"},
        "context: expected 256, got 255": {"context": 255},
        r"layout: expected \[.*float32.*, got \[.*bfloat16": {
            "layout": (first._replace(dtype="bfloat16"), *kind.layout[1:])
        },
        r"layout: expected \[.*, got \[.*in 2 parts": {"layout": (first._replace(devices=2), *kind.layout[1:])},
        r"layout: expected \[.*layers.*, got \[\]": {"layout": kind.layout[1:]},
        "layout: expected the same arrays in another order": {"layout": kind.layout[::-1]},
    }
    for prefix in (text_lm.prefix(IDS[:1]), text_lm.prefix(IDS[:9])):
        steps = text_lm.stats["steps"]
        for message, difference in differences.items():
            other = altered(prefix, **difference)
            for use in (text_lm.generate, text_lm.score):
                with pytest.raises(hybridlm.SnapshotError, match=message) as raised:
                    use([[5]], prefix=other)
                assert str(raised.value).count("expected") == 1, "of nothing else"
            with text_lm.session() as session, pytest.raises(hybridlm.SnapshotError, match=message):
                session.submit([5], prefix=other)
            pool = text_lm.engine.new_pool(1)
            with pytest.raises(hybridlm.SnapshotError, match=message):
                text_lm.engine.moves.restore(other.snapshot, pool, pool.acquire(10), [*prefix.token_ids, 5], owner=None)
        assert text_lm.stats["steps"] == steps
    with pytest.raises(TypeError, match=r"prefix: expected what lm\.prefix or lm\.load_prefix returns, got <class 'l"):
        text_lm.generate([[5]], prefix=[5, 6])  # type: ignore[arg-type]  # wrong on purpose


def test_the_epoch_of_a_state_is_compared_with_nothing(text_lm: hybridlm.LM) -> None:
    prefix = text_lm.prefix(IDS[:9])
    snapshot = dataclasses.replace(prefix.snapshot, epoch=77)
    (got,), (want,) = (
        text_lm.score([IDS[9:20]], prefix=stored) for stored in (hybridlm.Prefix(prefix.token_ids, snapshot), prefix)
    )
    assert got.logprobs.tobytes() == want.logprobs.tobytes()


def test_a_state_is_not_restored_for_other_tokens(text_lm: hybridlm.LM) -> None:
    engine, snapshot = text_lm.engine, text_lm.prefix(IDS[:9]).snapshot
    pool = engine.new_pool(1)
    slot = pool.acquire(9)
    assert engine.moves.restore(snapshot, pool, slot, IDS[:9], owner=None) == 8 == pool.consumed(slot)
    with pytest.raises(hybridlm.SnapshotError, match="position 8 was made from other tokens"):
        engine.moves.restore(snapshot, pool, slot, [4, *IDS[1:9]], owner=None)
    with pytest.raises(hybridlm.SnapshotError, match="position 8 continues sequences of more tokens, got one of 8"):
        engine.moves.restore(snapshot, pool, slot, IDS[:8], owner=None)


@pytest.mark.slow
def test_a_snapshot_is_taken_at_the_position_that_its_row_has_reached(text_lm: hybridlm.LM) -> None:
    """Snapshots are right at every step; positions one before and behind are refused."""
    engine = text_lm.engine
    with text_lm.session() as session:
        session.submit(IDS[:12], max_tokens=4, ignore_eos=True)
        session.submit(IDS[:3], max_tokens=2, ignore_eos=True)
        for consumed in (5, 10, 10, 12):  # the third step decodes the other request
            session.step()
            scheduler: Any = session._scheduler
            (sequence,) = (sequence for sequence in scheduler.joined if sequence.request.index == 0)
            pool = scheduler._pool
            assert pool.consumed(sequence.slot) == consumed
            snapshot = engine.moves.take(pool, sequence.slot, IDS[:consumed], owner=sequence)
            assert snapshot.position == consumed
            prefix = hybridlm.Prefix(tuple(IDS[: consumed + 1]), snapshot)
            (got,) = text_lm.score([IDS[consumed + 1 : 20]], prefix=prefix)
            (want,) = text_lm.score([IDS[:20]])
            np.testing.assert_allclose(got.logprobs, want.logprobs[consumed + 1 :], atol=1e-4)
            for wrong in (consumed - 1, consumed + 1):
                with pytest.raises(hybridlm.SnapshotError, match=f"the row has consumed {consumed} since it was"):
                    engine.moves.take(pool, sequence.slot, IDS[:wrong], owner=sequence)
        session.cancel(0)
        fresh = pool.acquire()
        assert pool.consumed(fresh) == 0
        pool.owner.release(fresh)
