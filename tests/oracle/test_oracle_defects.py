"""Known departures of transformers from training code, and our behaviour."""

import json
import pathlib

import numpy as np
import pytest
from comparison import check_logits
from tiny_variants import ragged_prompts, variant

import hybridlm

pytestmark = [pytest.mark.oracle, pytest.mark.long]

FLOOR = 0.5
"""Far above the scale of published models, so that it matters to random weights."""


def test_the_floor_under_time_steps(tmp_path: pathlib.Path) -> None:
    """The floor applies only if config.json asks, then to all tokens."""
    from tiny_checkpoint import write_checkpoint
    from transformers_oracle import Oracle

    nemotron = variant("nemotron_dense")
    write_checkpoint(nemotron, 0, tmp_path)
    file = tmp_path / "config.json"
    fields = json.loads(file.read_text()) | {"time_step_min": FLOOR}
    prompt = ragged_prompts(nemotron, 0)[-1]
    logits = {}
    for request in (False, True):
        file.write_text(json.dumps(fields | {"hf_compat_dt_floor": request}))
        logits[request] = Oracle.load(tmp_path, as_it_is=request).logits(prompt)
        array = np.asarray(hybridlm.load(tmp_path, lanes=1, dtype="float32").forward(prompt).logits)
        assert check_logits(array, logits[request], f"floor {request}", nemotron.tolerance) == 0
    assert np.abs(logits[True] - logits[False]).max() > 100 * nemotron.tolerance
