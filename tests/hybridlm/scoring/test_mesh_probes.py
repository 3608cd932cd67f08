"""Probes over a mesh: a disturbed lane changes no bit of another."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from random_checkpoint import FAMILIES, write_random_checkpoint

import hybridlm
from hybridlm import Intervention, ProbeSettings
from hybridlm.scoring.items import ScoredIds
from hybridlm.scoring.scorer import scores

RNG = np.random.default_rng(3)


TEXTS = [[int(i) for i in RNG.integers(3, 60, 9)] for _ in range(8)]


SETTINGS: dict[str, Any] = {"lanes": 8, "context": 200, "dtype": "float32", "chunk": 5, "compilation_cache": False}


def loaded(name: str, folder: Path, axes: tuple[int, int, int]) -> tuple[hybridlm.LM, hybridlm.LM]:
    directory = write_random_checkpoint(name, folder, **FAMILIES[name])
    return hybridlm.load(directory, certify="off", **SETTINGS), hybridlm.load(
        directory, mesh=hybridlm.mesh(*axes), **SETTINGS
    )


@pytest.mark.slow
def test_a_disturbed_lane_changes_no_bit_of_another(tmp_path: Path) -> None:
    """NaN in a vector and a state, with neighbours on the same and other devices."""
    _, over = loaded("sparse_base", tmp_path, (2, 2, 2))
    nan = np.full(over.config.hidden_size, np.nan)
    state = over.score(TEXTS[:1], states=True)[0].captured
    assert state is not None
    bad = np.full_like(state.state(0)[0], np.nan)
    other = [Intervention.ablate_head(0, 3), Intervention.scale_state(0, 0.5, head=1, positions=2)]

    def run(vector: np.ndarray, value: np.ndarray) -> list[np.ndarray]:
        first = [
            Intervention.add(vector, hidden_state=1, positions=2), Intervention.replace_state(0, value, positions=4)
        ]  # fmt: skip
        probing = over.text_model.probing(  # type: ignore[attr-defined]
            ProbeSettings(interventions=[first, other, other, []]), [ScoredIds((*text,)) for text in TEXTS[:4]], None
        )
        return [score.logprobs for score in scores(over.engine, [(*text,) for text in TEXTS[:4]], probing=probing)]

    mild, disturbed = run(np.zeros_like(nan), np.zeros_like(bad)), run(nan, bad)
    assert np.isnan(disturbed[0][3:]).all()
    for lane in (1, 2, 3):
        assert mild[lane].tobytes() == disturbed[lane].tobytes()
    assert jax.tree.all(jax.tree.map(lambda item: np.isfinite(item[1:]).all(), mild))
