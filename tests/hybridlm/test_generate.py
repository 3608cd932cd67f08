"""Generation through the queue: order, stops, limits, log-probabilities, and independence of other requests."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparison import log_softmax, padded
from text_checkpoint import SETTINGS

import hybridlm
from hybridlm.session import Event

PROMPTS = ["Ada", "a longer prompt of many letters", "b", "chunk", "six___", "Where is the kite?", "!"]
FREE = {"max_tokens": 9, "ignore_eos": True}


def by_position(logits, last_token, position):
    """Force the position, or at odd positions the last token, to identify the sampled lane."""
    forced = jnp.where(position % 2 == 0, position, last_token)
    return jnp.where(jnp.arange(logits.shape[0]) == forced, 1e4, logits)


def best_margin(lm: hybridlm.LM, tokens: list[int]) -> float:
    best = np.sort(np.asarray(lm.forward(tokens).logits[-1]))[-2:]
    return float(best[1] - best[0])


def test_results_come_in_the_order_of_the_prompts_and_equal_each_alone(text_lm: hybridlm.LM) -> None:
    assert text_lm.tokenizer is not None
    batched = text_lm.generate(PROMPTS, **FREE)
    assert [c.prompt_token_ids for c in batched] == [text_lm.tokenizer.encode(p) for p in PROMPTS]
    for prompt, completion in zip(PROMPTS, batched, strict=True):
        (single,) = text_lm.generate(prompt, **FREE)
        equal = sum(a == b for a, b in zip(single.token_ids, completion.token_ids, strict=True))
        if equal < 9:
            first = next(i for i in range(9) if single.token_ids[i] != completion.token_ids[i])
            assert best_margin(text_lm, single.prompt_token_ids + single.token_ids[:first]) < 2e-3
        assert completion.text == text_lm.tokenizer.decode(completion.token_ids)
        assert completion.finish_reason == "length" and completion.logprobs is None


@pytest.mark.slow
def test_greedy_tokens_and_logprobs_match_forward(text_lm: hybridlm.LM) -> None:
    completions = text_lm.generate(PROMPTS[:3], logprobs=3, **FREE)
    all_logits = text_lm.forward(padded([c.prompt_token_ids + c.token_ids for c in completions])).logits
    for c, rows in zip(completions, all_logits, strict=True):
        start = len(c.prompt_token_ids) - 1
        logprobs = log_softmax(rows[start : start + len(c.token_ids)])
        assert c.logprobs is not None and c.top_logprobs is not None
        assert logprobs.argmax(axis=1).tolist() == c.token_ids
        np.testing.assert_allclose(c.logprobs, logprobs[np.arange(9), c.token_ids], atol=1e-4)
        for row, top in zip(logprobs, c.top_logprobs, strict=True):
            assert list(top) == np.argsort(-row, kind="stable")[:3].tolist()
            np.testing.assert_allclose(list(top.values()), np.sort(row)[::-1][:3], atol=1e-4)


def test_a_sample_does_not_depend_on_batch_mates(text_lm: hybridlm.LM) -> None:
    settings: dict[str, Any] = {"temperature": 1.0, "seed": 5, "logprobs": 3, **FREE}
    first = text_lm.generate(PROMPTS, **settings)
    prompts = [p if i in (1, 4) else "other text" + "!" * (3 * i) for i, p in enumerate(PROMPTS)]
    second = text_lm.generate(prompts, **settings)
    for i in (1, 4):
        assert first[i] == second[i], "same index, same compiled shape: the same bits"
    assert first[0] != second[0]
    settings["seed"] = 6
    reseeded = text_lm.generate(PROMPTS, **settings)
    assert sum(a.token_ids == b.token_ids for a, b in zip(first, reseeded, strict=True)) == 0


def test_n_completions_of_one_prompt_are_sampled_independently(text_lm: hybridlm.LM) -> None:
    assert text_lm.tokenizer is not None
    settings = {"temperature": 1.5, "seed": 0, **FREE}
    completions = text_lm.generate(["ab", "cd"], n=3, **settings)
    assert [c.prompt_token_ids for c in completions] == [
        text_lm.tokenizer.encode(p) for p in ("ab", "ab", "ab", "cd", "cd", "cd")
    ]
    assert len({tuple(c.token_ids) for c in completions}) == 6
    assert completions == text_lm.generate(["ab", "ab", "ab", "cd", "cd", "cd"], **settings)


def test_a_stop_token_is_in_the_ids_and_not_in_the_text(text_lm: hybridlm.LM) -> None:
    (free,) = text_lm.generate("Ada", **FREE)
    stop = free.token_ids[4]
    until = free.token_ids.index(stop) + 1
    (stopped,) = text_lm.generate("Ada", stop=[stop], **FREE)
    assert stopped.token_ids == free.token_ids[:until] and stopped.finish_reason == "stop"
    assert stopped.text == text_lm.tokenizer.decode(free.token_ids[: until - 1])  # type: ignore[union-attr]  # it has one


@pytest.mark.slow
def test_stop_adds_to_the_models_own_end_tokens(text_lm: hybridlm.LM) -> None:
    (end,) = text_lm.eos_token_ids
    # The end token is sampled at the position that has its number.
    prompts, settings = [[20] * end] * 3, {"logits_processor": by_position, "logprobs": 0}
    for stop in (None, ["zzz"], []):
        for c in text_lm.generate(prompts, stop=stop, **settings):
            assert c.token_ids == [end] and c.finish_reason == "stop" and c.text == ""
    for c in text_lm.generate(prompts, max_tokens=4, ignore_eos=True, **settings):
        assert c.token_ids == [end, end, end + 2, end + 2] and c.finish_reason == "length"


def test_a_stop_string_cuts_the_text_where_it_begins(text_lm: hybridlm.LM) -> None:
    (free,) = text_lm.generate("Ada", **FREE)
    assert free.text is not None
    stop = free.text[3:5]
    (stopped,) = text_lm.generate("Ada", stop=stop, **FREE)
    assert stopped.text == free.text[: free.text.index(stop)] and stopped.finish_reason == "stop"
    assert stopped.token_ids == free.token_ids[: len(stopped.token_ids)]
    (later,) = text_lm.generate("Ada", stop=stop, min_tokens=len(stopped.token_ids), **FREE)
    assert len(later.token_ids) > len(stopped.token_ids) and stop in (later.text or "")


def test_the_context_ends_a_completion(text_lm: hybridlm.LM) -> None:
    context = text_lm.context
    prompts = [[5] * (context - space) for space in (3, 1, 0, 7)]
    for prompt, c in zip(prompts, text_lm.generate(prompts, max_tokens=50, ignore_eos=True), strict=True):
        assert len(c.token_ids) == context - len(prompt) and c.finish_reason == "length"
    with pytest.raises(ValueError, match=r"prompts\[1\]: has 257 tokens, the context holds 256"):
        text_lm.generate([[5], [5] * 257])


@pytest.mark.slow
def test_a_logits_processor_sees_its_own_lane(text_lm: hybridlm.LM) -> None:
    prompts = [[10], [20, 21], [30, 31, 32, 33, 34, 35]]
    for c in text_lm.generate(prompts, max_tokens=4, ignore_eos=True, logits_processor=by_position, logprobs=0):
        want, tokens = [], list(c.prompt_token_ids)
        for _ in range(4):
            tokens.append(len(tokens) if len(tokens) % 2 == 0 else tokens[-1])
            want.append(tokens[-1])
        assert c.token_ids == want
        assert c.logprobs is not None and max(c.logprobs) < -0.01, "reported before processing"


@pytest.mark.parametrize(("prompts", "error", "message"), [
    ([3, 4, 5], TypeError, r"bare list of token ids; put it in a list: \[\[3"),
    (["a", ""], ValueError, r"prompts\[1\]: is empty"),
    ([[1], [97]], ValueError, r"prompts\[1\]: token id 97 at index 0 is outside the vocabulary \[0, 97\)"),
    ([[1, -1]], ValueError, r"prompts\[0\]: token id -1 at index 1"),
    ([[1], [1.5]], TypeError, r"prompts\[1\]: expected token ids, got 1.5 at index 0"),
    (5, TypeError, "prompts: expected a list"),
])  # fmt: skip
def test_bad_prompts_are_named_before_anything_runs(text_lm: hybridlm.LM, prompts, error, message: str) -> None:
    steps = text_lm.stats["steps"]
    with pytest.raises(error, match=message):
        text_lm.generate(prompts)
    assert text_lm.stats["steps"] == steps


def test_an_interruption_reports_lost_completions(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(session: Any, requests: Any, start: Any) -> Any:
        yield Event(1, 5, "x", hybridlm.Completion("x", [5], None, None, "stop", [1]))
        raise KeyboardInterrupt

    monkeypatch.setattr("hybridlm.text_model.run_requests", run)
    with pytest.raises(KeyboardInterrupt) as error:
        text_lm.generate(["a", "b", "c"])
    (note,) = error.value.__notes__
    assert note.startswith("1 of 3 completions were finished and are lost: stream yields each")


def test_no_prompts_give_no_completions(text_lm: hybridlm.LM) -> None:
    assert text_lm.generate([]) == [] and text_lm.score([]) == []


def test_an_interrupted_run_leaves_a_model_that_works(text_lm: hybridlm.LM) -> None:
    want = text_lm.generate(PROMPTS, **FREE)
    events = text_lm.stream(PROMPTS, **FREE)
    for _ in range(7):
        next(events)
    events.close()
    assert text_lm.generate(PROMPTS, **FREE) == want

    def interrupt(pools, owners):
        raise KeyboardInterrupt

    text_lm.engine.after_step = interrupt
    try:
        with pytest.raises(KeyboardInterrupt):
            text_lm.generate(PROMPTS, **FREE)
    finally:
        text_lm.engine.after_step = None
    assert text_lm.generate(PROMPTS, **FREE) == want


def test_compiled_shapes_are_the_ladder_and_nothing_recompiles(text_lm: hybridlm.LM) -> None:
    lm = hybridlm.load(text_lm.path, **SETTINGS)
    for count in (3, 1, 5):
        lm.generate([[7] * (count + 3)] * count, max_tokens=3, ignore_eos=True)
    lm.score([[7] * 9] * 5)
    engine = lm.engine
    ladder = {engine.shape("generate", lanes, tokens) for lanes, tokens in ((1, 1), (3, 1), (1, 5), (2, 5), (3, 5))}
    # The state after what texts have in common goes out and comes back.
    assert set(engine.programs.shapes) == {
        *ladder,
        *engine.moves.shapes(3, engine.pages(3)),
        engine.shape("score", 3, 5, top=0),
    }
    lm.generate([[7]] * 9, temperature=0.5, seed=3, max_tokens=2)
    lm.score([[7] * 3] * 4)
    assert lm.stats["compiled"] == 10


def test_pools_are_donated_and_written_in_place(text_lm: hybridlm.LM) -> None:
    pointers: list[list[int]] = []

    def addresses(pools, owners):
        pointers.append([leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(pools)])
        return pools

    text_lm.engine.after_step = addresses
    try:
        text_lm.generate(["abc"] * 3, **FREE)
    finally:
        text_lm.engine.after_step = None
    assert len(pointers) == 9 and all(step == pointers[0] for step in pointers)
