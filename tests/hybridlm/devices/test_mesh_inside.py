"""Over a mesh, what is read and changed inside a model is what one device reads and changes, and of one lane alone."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from comparison import TOLERANCES
from random_checkpoint import FAMILIES, MESHES, write_random_checkpoint

import hybridlm
from hybridlm import Intervention
from hybridlm.engine.probe_settings import ProbeSettings
from hybridlm.scoring.items import ScoredIds
from hybridlm.scoring.scorer import scores

RNG = np.random.default_rng(3)
TEXTS = [[int(i) for i in RNG.integers(3, 60, 9)] for _ in range(8)]
SETTINGS: dict[str, Any] = {"lanes": 8, "context": 200, "dtype": "float32", "chunk": 5, "compilation_cache": False}
AXES = [
    pytest.param(axes, marks=pytest.mark.slow if axes == (2, 2, 2) else pytest.mark.long, id=str(axes))
    for axes in MESHES
]


def loaded(name: str, folder: Path, axes: tuple[int, int, int]) -> tuple[hybridlm.LM, hybridlm.LM]:
    directory = write_random_checkpoint(name, folder, **FAMILIES[name])
    return hybridlm.load(directory, certify="off", **SETTINGS), hybridlm.load(
        directory, mesh=hybridlm.mesh(*axes), **SETTINGS
    )


def changes_of(one: hybridlm.LM) -> list[list[Intervention]]:
    """Every kind of intervention that the model has the place for, each in a text of its own; the last have none."""
    width, sites = one.config.hidden_size, one.model.sites()
    vector = RNG.normal(size=width)
    found: list[list[Intervention]] = [
        [
            Intervention.add(vector, hidden_state=1),
            Intervention.replace_hidden_state(vector, hidden_state=2, positions=3),
        ]
    ]
    for kind in ("attention", "recurrent", "expert"):
        for layer in [i for i, each in enumerate(sites) if kind in each][:1]:
            last, mixer = sites[layer][kind] - 1, None if kind == "expert" else kind
            ablate: Any = Intervention.ablate_expert if kind == "expert" else Intervention.ablate_head
            found.append([ablate(layer, last, **({"mixer": mixer} if mixer else {}))])
    states = one.score(TEXTS[7:], states=True, positions=[4])[0].captured
    assert states is not None
    patch = Intervention.patch(states, 4, at=2)
    scale = next(change for change in patch if change.array in ("recurrent", "conv"))
    head = 1 if scale.array == "recurrent" else None
    found.append([Intervention.scale_state(scale.layer, 0.25, head=head, array=scale.array, positions=[3, 5])])
    return [*found, patch, [], []]


def check_captured(found: Any, expected: Any, tolerance: float) -> None:
    assert found.positions.tolist() == expected.positions.tolist()
    for i, rows in expected.hidden_states.items():
        np.testing.assert_allclose(found.hidden_states[i], rows, rtol=0, atol=tolerance)
    assert found.states.keys() == expected.states.keys() and found.dims == expected.dims
    for name, states in expected.states.items():
        np.testing.assert_allclose(found.states[name], states, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) for name in FAMILIES])
def test_every_read_and_change_is_that_of_one_device(tmp_path: Path, name: str, axes: tuple[int, int, int]) -> None:
    one, over = loaded(name, tmp_path, axes)
    tolerance = TOLERANCES[one.config.family.removesuffix("_text")]
    changes = changes_of(one)
    texts, layers = TEXTS[: len(changes)], [0, 1, one.config.num_layers]
    plain = over.score(texts)
    asked: dict[str, Any] = {"hidden_states": layers, "states": True, "positions": [0, 4, 8]}
    for a, b in zip(over.score(texts, **asked), one.score(texts, **asked), strict=True):
        check_captured(a.captured, b.captured, tolerance)
    found, expected = (lm.score(texts, interventions=changes) for lm in (over, one))
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=tolerance)
        kept = a.logprobs.tobytes() == plain[i].logprobs.tobytes()
        # A text may have no token that is routed to the expert.
        assert kept == (not changes[i]) or changes[i][0].kind == "ablate_expert"
    settings: dict[str, Any] = {"max_tokens": 3, "ignore_eos": True, "logprobs": 0, "hidden_states": layers}
    generated = [lm.generate(texts, interventions=changes, **settings) for lm in (over, one)]
    for a, b in zip(*generated, strict=True):
        if a.token_ids == b.token_ids:
            check_captured(a.captured, b.captured, tolerance)
            np.testing.assert_allclose(a.logprobs or (), b.logprobs or (), rtol=0, atol=tolerance)
    assert sum(a.token_ids == b.token_ids for a, b in zip(*generated, strict=True)) > len(texts) // 2
    assert all(certificate.holds for certificate in over.certificates.values())


@pytest.mark.slow
def test_a_disturbed_lane_changes_no_bit_of_another(tmp_path: Path) -> None:
    """NaN in a vector and in a state, beside lanes on the same device and on others."""
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
        return [one.logprobs for one in scores(over.engine, [(*text,) for text in TEXTS[:4]], probing=probing)]

    mild, disturbed = run(np.zeros_like(nan), np.zeros_like(bad)), run(nan, bad)
    assert np.isnan(disturbed[0][3:]).all()
    for lane in (1, 2, 3):
        assert mild[lane].tobytes() == disturbed[lane].tobytes()
    assert jax.tree.all(jax.tree.map(lambda one: np.isfinite(one[1:]).all(), mild))
