"""The prediction head of Ling 2.5 with lightning attention and limits of SwiGLU against a float64 forward."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison import TOLERANCES, check_logits
from float64_delta import Float64DeltaModel
from random_checkpoint import write_random_checkpoint
from with_head import head_logits, load_with_head

PROMPTS = [[int(token) for token in np.random.default_rng(n).integers(64, size=n)] for n in (3, 5, 17, 33, 40)]
LIMITS: dict[str, Any] = {
    "expert_swiglu_limit_list": [0, 0.3, 0, 0.3, 0.2, 0, 0.2],
    "share_expert_swiglu_limit_list": [0, 0, 0.2, 0.3, 0, 0, 0.3],
}


@pytest.mark.slow
def test_logits_of_the_prediction_head(tmp_path: Path) -> None:
    """For each token but the first; the last limits are those of the head's experts."""
    directory = write_random_checkpoint("ling_lightning", tmp_path / "ling", head=True, **LIMITS)
    model = Float64DeltaModel(directory)
    for prompt, row in zip(PROMPTS, head_logits(load_with_head(directory), PROMPTS), strict=True):
        expected = model.prediction(prompt).astype(np.float32)
        where = f"prompt of {len(prompt)} tokens"
        assert not check_logits(row, expected, where, TOLERANCES["bailing_hybrid"])
