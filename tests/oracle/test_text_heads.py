"""Classification, reward and embedding models that transformers wrote, against transformers, one text at a time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import hybridlm

pytestmark = pytest.mark.oracle
GOLDEN = Path(__file__).parents[1] / "golden"
RNG = np.random.default_rng(0)
TEXTS = [[int(i) for i in RNG.integers(3, 90, count)] for count in (5, 23, 1, 12, 70)]


def written(directory: Path, name: str, auto: Any, **fields: Any) -> Any:
    """A saved random model in a golden's sizes, with large parameters."""
    settings = {"architectures": None, "tie_word_embeddings": False} | fields
    config = transformers.AutoConfig.from_pretrained(GOLDEN / name, **settings)
    torch.manual_seed(3)
    model = auto.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    return model


@pytest.mark.parametrize("name", ["dense_interval", "next_old_fields"])
@pytest.mark.parametrize("labels", [3, 1])
def test_classes_and_rewards(tmp_path: Path, name: str, labels: int) -> None:
    auto = transformers.AutoModelForSequenceClassification
    model = written(tmp_path, name, auto, num_labels=labels)
    with torch.no_grad():
        expected = np.concatenate([model(torch.tensor([text])).logits.numpy() for text in TEXTS])
    lm = hybridlm.load(tmp_path, lanes=3, context=128, dtype="float32", chunk=7)
    classes = lm.classify(TEXTS)
    assert classes.labels == tuple(f"LABEL_{i}" for i in range(labels)) and classes.logits.dtype == np.float32
    np.testing.assert_allclose(classes.logits, expected, rtol=1e-3, atol=1e-3)
    if labels > 1:
        softmax = torch.softmax(torch.tensor(expected, dtype=torch.float64), -1).numpy()
        np.testing.assert_allclose(classes.probabilities, softmax, atol=1e-3)
    for refused in (lambda: lm.generate(TEXTS), lambda: lm.score(TEXTS), lambda: lm.forward(TEXTS[0])):
        with pytest.raises(ValueError, match="vocabulary head"):
            refused()


@pytest.mark.parametrize(
    "name",
    ["dense_interval", "next_old_fields", "lfm2_base", "mamba2_base", "nemotron_latent", "kimi_base", "falcon_base"],
)
def test_embeddings(tmp_path: Path, name: str) -> None:
    model = written(tmp_path, name, transformers.AutoModel)
    with torch.no_grad():
        hidden = [model(torch.tensor([text])).last_hidden_state[0].double().numpy() for text in TEXTS]
    lm = hybridlm.load(tmp_path, lanes=3, context=128, dtype="float32", chunk=7)
    wanted = {"last": [x[-1] for x in hidden], "mean": [x.mean(0) for x in hidden], "first": [x[0] for x in hidden]}
    for pooling, rows in wanted.items():
        expected = np.stack(rows)
        vectors: Any = lm.embed(TEXTS, pooling=pooling, normalised=False)  # type: ignore[arg-type]
        np.testing.assert_allclose(vectors, expected, rtol=1e-3, atol=1e-3)
        unit = lm.embed(TEXTS, pooling=pooling)  # type: ignore[arg-type]
        np.testing.assert_allclose(unit, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-3)
    with pytest.raises(ValueError, match="vocabulary head"):
        lm.generate(TEXTS)
