"""No NaN or infinity leaves a model: errors name the text or row."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import changed_parameter, nan_token

import hybridlm
from hybridlm import Intervention
from hybridlm.scoring.pooling import class_logits

TEXTS = [[5, 6, 7, 8], [5, 6, 9, 8, 11], [7]]
NAN_TOKEN = 9


def refused(constant: str) -> None:
    raise AssertionError(f"{constant} in a line of JSON")


def infinite_logit(head: jax.Array) -> jax.Array:
    """Make token 20's logit infinite everywhere, with the sign of a residual number."""
    return head.at[20].set(0).at[20, 0].set(jnp.inf)


@pytest.mark.parametrize("call", [
    lambda lm: lm.score(TEXTS), lambda lm: lm.score(TEXTS, entropy=True, top=2, token_ids=[3]),
    lambda lm: lm.choose(TEXTS[0], [[5], [6, 7]]), lambda lm: lm.perplexity(TEXTS), lambda lm: lm.divergence(lm, TEXTS),
    lambda lm: lm.generate(TEXTS, max_tokens=4),
], ids=["score", "distributions", "choose", "perplexity", "divergence", "generate"])  # fmt: skip
def test_an_infinite_logit_is_an_error(text_lm: hybridlm.LM, call: Callable[[hybridlm.LM], Any]) -> None:
    with (
        changed_parameter(text_lm, "lm_head", infinite_logit),
        pytest.raises(hybridlm.NumericalError, match=r"\[\d\]|request"),
    ):
        call(text_lm)


@pytest.mark.parametrize("call", [
    lambda lm: lm.score(TEXTS), lambda lm: lm.score(TEXTS, entropy=True, top=2, token_ids=[3]),
    lambda lm: lm.divergence(lm, TEXTS), lambda lm: lm.embed(TEXTS, pooling="mean"),
], ids=["score", "distributions", "divergence", "embed"])  # fmt: skip
def test_an_embedding_that_is_no_number_names_its_text(
    text_lm: hybridlm.LM, call: Callable[[hybridlm.LM], Any]
) -> None:
    with nan_token(text_lm, NAN_TOKEN), pytest.raises(hybridlm.NumericalError, match=r"texts\[1\]: "):
        call(text_lm)


def test_a_score_of_zero_probability_is_an_error(text_lm: hybridlm.LM) -> None:
    """Another token's infinite logit gives -inf instead of NaN."""
    with changed_parameter(text_lm, "lm_head", infinite_logit):
        scores = text_lm.text_model.scores([tuple(text) for text in TEXTS])
        infinite = [np.isneginf(score.logprobs).any() for score in scores]
        assert any(infinite)
        assert all(score.first_wrong is not None for score, wrong in zip(scores, infinite, strict=True) if wrong)


def test_files_count_the_rows(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    """Each kind of file has an error row for NaN and counts it."""
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"token_ids": text}) + "\n" for text in TEXTS))
    with changed_parameter(text_lm, "embed_tokens", lambda table: table.at[NAN_TOKEN].set(jnp.inf)):
        for name, compute in {
            "score": text_lm.score_file,
            "embed": text_lm.embed_file,
            "divergence": lambda *paths: text_lm.divergence_file(text_lm, *paths),
            "reads": lambda *paths: text_lm.score_file(*paths, hidden_states=[0], states=True),
        }.items():
            report = compute(source, tmp_path / f"{name}.jsonl")
            rows = [
                json.loads(line, parse_constant=refused)
                for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()
            ]
            assert (report.texts, report.errors) == (2, 1), name
            assert ["error" in row for row in rows] == [False, True, False], name
            assert "token " in rows[1]["error"], name


def test_values_that_were_read_are_checked(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    """Nothing is predicted after the last token, so that its log-probabilities are finite."""
    last = len(TEXTS[0]) - 1
    nan = Intervention.add(np.full(text_lm.config.hidden_size, np.nan), hidden_state=1, positions=last)
    request: dict[str, Any] = {"hidden_states": [1], "interventions": [[nan], [], []]}
    with pytest.raises(hybridlm.NumericalError, match=rf"^texts\[0\]: token {last}: "):
        text_lm.score(TEXTS, **request)
    with pytest.raises(hybridlm.NumericalError):
        text_lm.score(TEXTS, **request, capture_to=tmp_path / "read")
    assert "000000.safetensors" not in [path.name for path in (tmp_path / "read").iterdir()]


def test_a_mean_of_nothing_is_none(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"token_ids": [7]}\n')
    report = text_lm.divergence_file(text_lm, source, tmp_path / "out.jsonl")
    assert (report.predicted, report.mean_kl, report.agreement, report.errors) == (0, None, None, 0)


@pytest.mark.slow
def test_infinite_logits_of_a_processor(text_lm: hybridlm.LM) -> None:
    """A processor may force a token; banning all tokens is an error."""

    processor = lambda logits, last, position: jnp.where(position > 3, -jnp.inf, logits.at[21].set(jnp.inf))
    settings: dict[str, Any] = {"logits_processor": processor, "logprobs": 2, "ignore_eos": True}
    (completion,) = text_lm.generate([[5, 6]], max_tokens=2, **settings)
    assert completion.token_ids == [21, 21] and np.isfinite(completion.logprobs or [np.nan]).all()
    for temperature in (0.0, 1.0):
        with pytest.raises(hybridlm.GrammarError, match=r"request 0.* 4: "):
            text_lm.generate([[5, 6]], max_tokens=8, temperature=temperature, **settings)
    with (
        changed_parameter(text_lm, "lm_head", infinite_logit),
        pytest.raises(hybridlm.NumericalError, match="request 0: token 2"),
    ):
        text_lm.generate([[5, 6]], max_tokens=8, **settings)


def test_logits_of_classes_that_overflow() -> None:
    result = class_logits(np.full((2, 2), 1e30, np.float32), np.array([[1e30, 1], [1, 1]], np.float32))
    assert np.isfinite(result).all(axis=1).tolist() == [False, True]
