"""The residual stream at any position equals `forward`, also with common prefixes."""

import numpy as np
import pytest
from comparison import padded

import hybridlm
from hybridlm.scoring.pooling import read_hidden

IDS = np.random.default_rng(7).integers(3, 90, 60).tolist()


@pytest.mark.slow
def test_places_match_forward_with_and_without_common_parts(
    text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [tuple(IDS[:end]) for end in (23, 31, 31, 40, 4)]
    places = [(3, 9, 22), (9, 30), (3, 9, 30), (0, 1, 2, 39), ()]
    stream = text_lm.forward(padded([list(text) for text in texts])).hidden_states[-1]
    expected = np.asarray(text_lm.model.norm(stream))
    size = text_lm.config.hidden_size
    states = read_hidden(text_lm.engine, texts, places, size)
    for i, (text, index) in enumerate(zip(states, places, strict=True)):
        vectors = text.vectors
        assert vectors.dtype == np.float32 and vectors.shape == (len(index), size)
        np.testing.assert_allclose(vectors, expected[i, list(index)], atol=1e-4, rtol=1e-4)
    monkeypatch.setattr("hybridlm.engine.reading.max_states", lambda lanes: 0)
    single = read_hidden(text_lm.engine, texts, places, size)
    assert [item.vectors.tobytes() for item in single] == [item.vectors.tobytes() for item in states]
