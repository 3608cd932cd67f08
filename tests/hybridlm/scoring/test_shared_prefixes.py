"""Texts with common prefixes: which prefixes are prefilled once, and that no number changes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reading_engine import ReadingEngine, read_without_model
from text_checkpoint import SETTINGS, write_text_checkpoint

import hybridlm
from hybridlm.scoring.shared_prefixes import shared_prefixes

IDS = np.random.default_rng(0).integers(3, 90, 400).tolist()
Texts = list[tuple[int, ...]]


def text(*tokens: int) -> tuple[int, ...]:
    return tokens


def test_parts_end_where_chunks_do() -> None:
    """A chunk is shared if what it consumes and what its last token predicts is common, and something is left."""
    a = tuple(range(10))
    for length, depth in ((4, None), (5, 4), (8, 4), (9, 8), (10, 8)):
        other = (*a[:length], 99, 98)
        parts, part_of = shared_prefixes([a, other], (4,), 0)
        assert [tokens for tokens, _, _ in parts] == ([] if depth is None else [a[: depth + 1]]), length
        assert part_of == ([None, None] if depth is None else [0, 0])
    assert shared_prefixes([a[:9], a[:9]], (4,), 0)[0][0][0] == a[:5], "the ninth token is predicted by the eighth"
    assert shared_prefixes([a, a], (4,), 1)[0][0][0] == a[:6], "the first chunk begins after a prefix"


def test_of_parts_within_parts_the_outermost_and_the_innermost_are_kept() -> None:
    stem = tuple(range(3))
    texts = [(*stem, *tail) for tail in ((3, 9, 9), (3, 4, 9, 9), (3, 4, 5, 6, 9), (3, 4, 5, 6, 8), (7, 7, 7, 7))]
    parts, part_of = shared_prefixes(texts, (1,), 0)
    assert [(tokens, parent) for tokens, parent, _ in parts] == [((0, 1, 2), None), ((0, 1, 2, 3, 4, 5, 6), 0)]
    assert part_of == [0, 0, 1, 1, 0]
    longer = [(*text, 20 + i, 30) for i, text in enumerate(texts)]
    assert shared_prefixes(longer, (1,), 0) == (parts, part_of), "texts that go on alone are no prefixes"


@given(st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=9).map(tuple), max_size=12), st.integers(1, 3))
@settings(max_examples=150)
def test_parts_are_common_to_their_texts_and_leave_something(texts: Texts, chunk: int) -> None:
    parts, part_of = shared_prefixes(texts, (chunk,), 0)
    parents = [parent for _, parent, _ in parts]
    members = [part_of.count(i) + parents.count(i) for i in range(len(parts))]
    assert all(count >= 2 for count in members)
    for index, (tokens, parent, _) in enumerate(parts):
        assert (len(tokens) - 1) % chunk == 0 and len(tokens) > 1
        if parent is not None:
            above, grandparent, _ = parts[parent]
            assert parent < index and grandparent is None
            assert tokens[: len(above)] == above and len(tokens) > len(above)
    for text, part in zip(texts, part_of, strict=True):
        if part is not None:
            common = parts[part][0]
            assert text[: len(common)] == common and len(text) > len(common)


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=9).map(tuple), max_size=12),
    st.integers(1, 4),
    st.integers(2, 5),
)
@example([(0, 0), (1, 0, 0, 0, 0), (0, 1, 0), (0, 1, 0, 0), (0, 1, 0, 0), (1, 0, 0, 0), (1, 0, 0, 0, 0)], 2, 3)
@settings(max_examples=150)
def test_everything_is_begun_and_few_states_are_kept(texts: Texts, lanes: int, limit: int) -> None:
    """No text waits for ever, in whatever order lanes become free."""
    engine = ReadingEngine(8, lanes, (1,))
    indices = []
    for group, finished in read_without_model(engine, dict(enumerate(texts)), limit):
        assert group.states <= limit
        indices += [text.index for text in finished]
    assert sorted(indices) == list(range(len(texts))) and not engine.pool.owner.held
    assert not texts or group.states == 0


def cold(lm: hybridlm.LM, texts: Texts, monkeypatch: pytest.MonkeyPatch, **settings) -> list[hybridlm.Score]:
    """Scores with every text consumed by itself."""
    with monkeypatch.context() as patch:
        patch.setattr("hybridlm.engine.reading.max_states", lambda lanes: 0)
        return lm.score(texts, **settings)


def same(got: list[hybridlm.Score], want: list[hybridlm.Score]) -> bool:
    return all(
        a.token_ids == b.token_ids
        and a.logprobs.tobytes() == b.logprobs.tobytes()
        and a.greedy.tobytes() == b.greedy.tobytes()
        and a.top_logprobs == b.top_logprobs
        for a, b in zip(got, want, strict=True)
    )


def families(count: int, nested: bool) -> Texts:
    """Texts in groups that begin alike, the groups too if nested, in no order."""
    rng = np.random.default_rng(count)
    texts: Texts = [text(7), text(8, 9)]
    for group in range(count):
        stem = IDS[:13] if nested else []
        stem = [*stem, *IDS[20 + 17 * group : 20 + 17 * group + int(rng.integers(4, 17))]]
        texts += [(*stem, *rng.integers(3, 90, int(rng.integers(0, 9))).tolist()) for _ in range(4)]
    return [texts[i] for i in rng.permutation(len(texts))]


@pytest.mark.parametrize("nested", [False, True])
def test_scores_have_the_same_bits_with_and_without_common_parts(
    text_lm: hybridlm.LM, nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = families(6, nested)
    want = cold(text_lm, texts, monkeypatch)
    stats = dict(text_lm.stats)
    assert same(text_lm.score(texts), want)
    gained = {name: text_lm.stats[name] - stats[name] for name in stats}
    total = sum(len(text) - 1 for text in texts)
    assert gained["scored_tokens"] + gained["prefix_tokens_saved"] == total
    assert gained["prefix_tokens_saved"] > total / 3
    prefix = text_lm.prefix(IDS[300:307])
    assert same(text_lm.score(texts, prefix=prefix), cold(text_lm, texts, monkeypatch, prefix=prefix))


def test_a_score_that_is_cut_short_leaves_nothing_behind(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, engine = families(3, nested=True), text_lm.engine
    want, run, steps = text_lm.score(texts), engine.run, iter(range(4))

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return run(*args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(engine, "run", interrupted)
        text_lm.score(texts)
    assert same(text_lm.score(texts), want)


def test_texts_of_a_step_do_not_depend_on_free_memory(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same steps in the same order, however much of the machine's memory others have; it was counted at load."""
    texts, engine = families(3, nested=True), text_lm.engine
    ran: list[list[int]] = []
    run = engine.run

    def recorded(shape: Any, pool: Any, rows: Any, inputs: Any, **rest: Any) -> Any:
        batch = inputs.batch
        ran[-1] += [shape.lanes, *np.ravel(batch.tokens), *batch.lengths, *batch.positions]
        return run(shape, pool, rows, inputs, **rest)

    monkeypatch.setattr(engine, "run", recorded)
    for free in (1, 1 << 50):
        monkeypatch.setattr("hybridlm.engine.memory._meminfo", lambda free=free: free)
        ran.append([])
        text_lm.score(texts)
    assert ran[0] and ran[0] == ran[1]


def test_scores_and_completions_share_a_pool(text_lm: hybridlm.LM) -> None:
    engine = text_lm.engine
    text_lm.generate([[5, 6]], max_tokens=2)
    pool = engine.pool
    text_lm.score([IDS[:3]])
    assert engine.pool is pool and pool.size == engine.rows and not pool.owner.held


@pytest.mark.long
def test_many_continuations_of_a_long_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 continuations of at most 32 tokens of 2000: at least 20 times fewer tokens, by an explicit prefix and without.

    The same numbers: bit for bit as the texts one by one in the same steps.
    """
    config = write_text_checkpoint(tmp_path) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 2048}))
    lm = hybridlm.load(tmp_path, **{**SETTINGS, "context": 2048, "lanes": 4, "chunk": 16})
    rng = np.random.default_rng(1)
    prompt = rng.integers(3, 90, 2001).tolist()
    suffixes = [rng.integers(3, 90, int(rng.integers(1, 33))).tolist() for _ in range(64)]
    sequences = [(*prompt, *ids) for ids in suffixes]
    total = sum(len(ids) - 1 for ids in sequences)
    assert total > 64 * 2000
    want = cold(lm, sequences, monkeypatch)

    def processed() -> int:
        return lm.stats["prompt_tokens"] + lm.stats["scored_tokens"]

    tokens_before = processed()
    assert same(lm.score(sequences), want)
    automatic = processed() - tokens_before
    assert total >= 20 * automatic, (total, automatic)
    tokens_before = processed()
    explicit = lm.score(suffixes, prefix=lm.prefix(prompt))
    explicit_tokens = processed() - tokens_before
    assert total >= 20 * explicit_tokens, (total, explicit_tokens)
    for got, expected in zip(explicit, want, strict=True):
        np.testing.assert_allclose(got.logprobs, expected.logprobs[2001:], rtol=0, atol=2e-3)
    tokens_before, wrote = processed(), lm.stats["generated_tokens"]
    drawn = lm.generate(suffixes, prefix=lm.prefix(prompt), max_tokens=1, ignore_eos=True)
    assert lm.stats["generated_tokens"] - wrote == len(drawn) == 64
    generate_found = processed() - tokens_before
    prompts = sum(map(len, sequences))
    assert prompts >= 20 * generate_found, (prompts, generate_found)
    tokens_before = processed()
    joined = lm.generate(sequences[:4], max_tokens=1, ignore_eos=True, logprobs=0)
    assert processed() - tokens_before == sum(map(len, sequences[:4])), (
        "without a prefix every token of every prompt is consumed"
    )
    warm = lm.generate(suffixes[:4], prefix=lm.prefix(prompt), max_tokens=1, ignore_eos=True, logprobs=0)
    for completion, other in zip(warm, joined, strict=True):
        assert completion.prompt_token_ids == other.prompt_token_ids and completion.token_ids == other.token_ids
        assert completion.logprobs is not None and other.logprobs is not None
        np.testing.assert_allclose(completion.logprobs, other.logprobs, rtol=0, atol=2e-3)
    print(
        f"tokens: {total} one by one, {automatic} found by itself, {explicit_tokens} with lm.prefix; of {prompts} in "
        f"prompts {generate_found} by generate with lm.prefix"
    )
