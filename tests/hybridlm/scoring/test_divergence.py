"""Comparison of two models: KL, Jensen-Shannon and agreement against float64; no lane reaches another."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from comparison import js, kl, log_softmax, padded
from packed_weights import packed_names
from quantised_checkpoint import LAYOUTS, write_quantised
from random_traffic import completed
from text_checkpoint import GOLDEN, SETTINGS

import hybridlm
from hybridlm.scoring.divergence import Divergence

RNG = np.random.default_rng(2)
TEXTS = [[int(i) for i in RNG.integers(3, 90, count)] for count in (23, 2, 9, 1, 14)]


def bits(divergence: Divergence, i: int) -> list[bytes]:
    place = slice(divergence.offsets[i], divergence.offsets[i + 1])
    return [x[place].tobytes() for x in (divergence.kl, divergence.reverse_kl, divergence.js, divergence.same_top)]


def test_all_numbers_match_float64(text_lm: hybridlm.LM, larger_lm: hybridlm.LM) -> None:
    divergence = text_lm.divergence(larger_lm, TEXTS)
    assert divergence.offsets.tolist() == np.cumsum([0, *map(len, TEXTS)]).tolist()
    assert divergence.token_ids.tolist() == sum(TEXTS, [])
    logs = [log_softmax(lm.forward(padded(TEXTS)).logits) for lm in (text_lm, larger_lm)]
    means: list[list[np.ndarray]] = [[], [], [], []]
    for i, text in enumerate(TEXTS):
        p, q = (rows[i][: len(text) - 1] for rows in logs)
        place = slice(divergence.offsets[i] + 1, divergence.offsets[i + 1])
        assert np.isnan(divergence.kl[place.start - 1]) and not divergence.same_top[place.start - 1]
        expected = kl(p, q), kl(q, p), js(p, q), p.argmax(-1) == q.argmax(-1)
        for values, want, mean in zip(
            (divergence.kl, divergence.reverse_kl, divergence.js, divergence.same_top), expected, means, strict=True
        ):
            np.testing.assert_allclose(values[place], want, rtol=1e-4, atol=1e-5)
            mean.append(want)
    figures = divergence.mean_kl, divergence.mean_reverse_kl, divergence.mean_js, divergence.agreement
    assert None not in figures
    np.testing.assert_allclose(np.array(figures, float), [np.concatenate(mean).mean() for mean in means], rtol=1e-4)
    assert divergence.certificate is not None and divergence.certificate.is_proof


def test_a_model_is_not_far_from_itself(text_lm: hybridlm.LM) -> None:
    divergence = text_lm.divergence(text_lm, ["a text over several chunks", "x"])
    assert (
        not divergence.kl[divergence.predicted].any()
        and not divergence.js[divergence.predicted].any()
        and divergence.agreement == 1.0
    )
    single = text_lm.divergence(text_lm, "x")
    assert single.mean_kl is None and single.agreement is None and single.certificate is None


def test_a_text_has_the_same_bits_whatever_is_compared_with_it(text_lm: hybridlm.LM, larger_lm: hybridlm.LM) -> None:
    base, repeat = (text_lm.divergence(larger_lm, texts) for texts in (TEXTS, [[5, 6, 7], *TEXTS[::-1], [8] * 30]))
    for i in range(len(TEXTS)):
        assert bits(base, i) == bits(repeat, len(TEXTS) - i)


def test_a_common_beginning_is_computed_once_in_both(text_lm: hybridlm.LM, larger_lm: hybridlm.LM) -> None:
    """Chunks of 5 tokens: nested common prefixes, and more texts than lanes."""
    outer, inner = TEXTS[0][:10], [*TEXTS[0][:10], *TEXTS[4][:10]]
    texts = [*([*outer, 3 + i, 40, 41, 42] for i in range(3)), *([*inner, 3 + i, 50] for i in range(3)), outer]
    initial = [lm.stats["prefix_tokens_saved"] for lm in (text_lm, larger_lm)]
    divergence = text_lm.divergence(larger_lm, texts)
    saved = [lm.stats["prefix_tokens_saved"] - item for lm, item in zip((text_lm, larger_lm), initial, strict=True)]
    # The token after a shared chunk is the same in all its texts. So the first 5 tokens are computed once for 7 texts,
    # and the 10 after them once for 3.
    assert saved == [6 * 5 + 2 * 10] * 2
    for i, text in enumerate(texts):
        assert bits(divergence, i) == bits(text_lm.divergence(larger_lm, [text, [5, 6, 7], [8, 9]]), 0), i


@pytest.mark.slow
def test_a_quantised_model_and_its_original(larger_lm: hybridlm.LM, tmp_path: Path) -> None:
    """Its matrices, its head too, stay packed."""
    folder, names = write_quantised(GOLDEN, tmp_path / "int8", LAYOUTS["modelopt-fp8"])
    settings: dict[str, Any] = {"lanes": 4, "context": 128, "dtype": "float32", "chunk": 7}
    packed = hybridlm.load(folder / "quantised", **settings)
    assert names and packed_names(packed.params)
    divergence = larger_lm.divergence(packed, TEXTS[:2])
    exact = hybridlm.load(folder / "plain", **settings)
    p, q = (log_softmax(lm.forward(padded(TEXTS[:2])).logits) for lm in (larger_lm, exact))
    place = slice(1, len(TEXTS[0]))
    rows = p[0][: len(TEXTS[0]) - 1], q[0][: len(TEXTS[0]) - 1]
    assert (
        divergence.mean_kl is not None
        and 0 < divergence.mean_kl < 0.2
        and divergence.agreement
        and divergence.agreement > 0.5
    )
    np.testing.assert_allclose(divergence.kl[place], kl(*rows), rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(divergence.js[place], js(*rows), rtol=2e-3, atol=1e-6)


def test_models_that_cannot_be_compared(text_lm: hybridlm.LM, larger_lm: hybridlm.LM) -> None:
    with pytest.raises(ValueError, match=r"^texts\[0\]: .*tokenizer"):
        text_lm.divergence(larger_lm, ["abc"])
    with pytest.raises(TypeError, match="^other: "):
        text_lm.divergence(Path("abc"), ["abc"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^texts\[0\]"):
        text_lm.divergence(larger_lm, [[5] * 200])


@pytest.mark.slow
def test_with_the_sanitizer(sanitized_lm: hybridlm.LM, text_lm: hybridlm.LM) -> None:
    assert SETTINGS["lanes"] == 3
    actual, expected = (item.divergence(item, TEXTS) for item in (sanitized_lm, text_lm))
    assert bits(actual, 0) == bits(expected, 0)


@pytest.mark.slow
def test_a_comparison_and_a_session_share_the_rows_of_the_other_model(
    text_lm: hybridlm.LM, larger_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other model's session waits for rows of the comparison, and a pool that is lost is read again by both."""
    texts = [[int(i) for i in RNG.integers(3, 90, 60 + count)] for count in range(6)]
    want = text_lm.divergence(larger_lm, texts)
    prompts = [text[:9] for text in texts[:4]]
    alone = [completion.token_ids for completion in larger_lm.generate(prompts, max_tokens=9, ignore_eos=True)]
    held, results = list[int](), dict[int, list[int]]()
    with larger_lm.session() as session:

        def step_between() -> None:
            held.append(len(larger_lm.engine.pool.owner.held) - len(session._scheduler.joined))
            if len(held) == 4:
                for prompt in prompts:
                    session.submit(prompt, max_tokens=9, ignore_eos=True)
            results.update({index: completion.token_ids for index, completion in completed(session).items()})
            if len(held) == 10:
                larger_lm.engine.pool.take()

        decisions = SimpleNamespace(
            checkpoint=step_between, command=lambda kind, **arguments: nullcontext(), decide=lambda make: make()
        )
        monkeypatch.setattr(text_lm.engine, "decisions", decisions)
        divergence = text_lm.divergence(larger_lm, texts)
        while session.busy:
            step_between()
    assert held[3] == 3, "the comparison has rows of the larger_lm model"
    assert [results[index] for index in range(4)] == alone
    assert all(bits(divergence, i) == bits(want, i) for i in range(len(texts)))
