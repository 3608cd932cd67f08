"""Hidden states and states that generation reads when it samples each token."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import hybridlm
from hybridlm import Intervention

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [40, 41, 42], [20] * 11, [7]]


@pytest.fixture(scope="module")
def plain(text_lm: hybridlm.LM) -> list[hybridlm.Completion]:
    return text_lm.generate(PROMPTS, max_tokens=6, logprobs=1)


def check(lm: hybridlm.LM, completion: hybridlm.Completion, positions: list[int]) -> None:
    """Compare captures and the completion's log-probabilities with `forward`."""
    captured, full = completion.captured, [*completion.prompt_token_ids, *completion.token_ids]
    assert captured is not None and captured.positions.tolist() == positions
    out = lm.forward(full[: positions[-1] + 1], return_states=True)
    for i, rows in captured.hidden_states.items():
        np.testing.assert_allclose(rows, np.asarray(out.hidden_states[i])[positions], atol=1e-4)
    assert out.states is not None
    np.testing.assert_allclose(captured.state(0)[-1], np.asarray(out.states.layers[0][0].recurrent)[0], atol=1e-5)


@pytest.mark.slow
def test_it_reads_where_each_token_is_sampled(text_lm: hybridlm.LM, plain: list[hybridlm.Completion]) -> None:
    completions = text_lm.generate(
        PROMPTS, max_tokens=6, logprobs=1, hidden_states=[0, 1, 2], states=True, positions="all", speculate=None
    )
    assert completions == plain
    for completion in completions:
        first = len(completion.prompt_token_ids) - 1
        check(text_lm, completion, list(range(first, first + len(completion.token_ids))))
        hidden = completion.captured and completion.captured.hidden_states[2]
        logits = text_lm.model.logits(text_lm.model.norm(jax.numpy.asarray(hidden)))
        sampled = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), np.array(completion.token_ids)[:, None], 1)
        np.testing.assert_allclose(sampled[:, 0], completion.logprobs or (), atol=1e-4)


@pytest.mark.long
def test_reads_at_the_last_position_and_at_a_stop(text_lm: hybridlm.LM, plain: list[hybridlm.Completion]) -> None:
    stop = plain[0].token_ids[3]
    results = text_lm.generate(PROMPTS, max_tokens=6, logprobs=1, hidden_states=[1], states=True, stop_token_ids=[stop])
    count = plain[0].token_ids.index(stop) + 1
    assert results[0].token_ids == plain[0].token_ids[:count]
    for completion in results:
        check(text_lm, completion, [len(completion.prompt_token_ids) + len(completion.token_ids) - 2])


@pytest.mark.long
def test_files(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    def run(**settings: Any) -> list[hybridlm.Completion]:
        return text_lm.generate(
            PROMPTS[:2], max_tokens=6, n=2, temperature=0.8, hidden_states=[2], states=True, positions="all", **settings
        )

    memory, files = run(), run(capture_to=tmp_path / "here")
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == [f"{i:06}.safetensors" for i in range(4)]
    for result, other in zip(memory, files, strict=True):
        assert result == other and result.captured is not None and other.captured is not None and other.captured.path
        arrays = load_file(other.captured.path)
        assert arrays["hidden_states[2]"].tobytes() == result.captured.hidden_states[2].tobytes()
        assert all(arrays[name].tobytes() == values.tobytes() for name, values in result.captured.states.items())
        assert len(arrays["positions"]) == len(result.token_ids)


@pytest.mark.long
def test_nothing_is_left_of_a_call_that_fails(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    processor = lambda logits, last, position: jax.numpy.where(position > 9, jax.numpy.nan, logits)
    with pytest.raises(hybridlm.NumericalError):
        text_lm.generate(PROMPTS[:1], max_tokens=6, states=True, logits_processor=processor, capture_to=tmp_path / "x")
    assert list((tmp_path / "x").iterdir()) == []


def test_inconsistent_input_is_refused(text_lm: hybridlm.LM) -> None:
    change = Intervention.ablate_head(0, 0)
    prefix = text_lm.prefix([5, 6])
    refused: list[tuple[str, Any]] = [
        ("positions.*last or all", {"hidden_states": [1], "positions": [3]}),
        ("speculate", {"hidden_states": [1], "speculate": "ngram"}),
        ("thinking_budget", {"states": True, "thinking_budget": 3}),
        ("prefix", {"prefix": prefix, "interventions": [change]}),
        ("each of 2 prompts", {"interventions": [[change]]}),
        (
            r"prompts\[1\]: interventions\[0\].*below 9",
            {"interventions": [Intervention.ablate_head(0, 0, positions=9)]},
        ),
    ]
    for words, settings in refused:
        with pytest.raises(ValueError, match=words):
            text_lm.generate(PROMPTS[:2], max_tokens=6, **settings)
