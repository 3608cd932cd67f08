"""Over a mesh, reads and changes inside a model equal those on one device."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from comparison import TOLERANCES
from random_checkpoint import FAMILIES, MESHES, write_random_checkpoint

import hybridlm
from hybridlm import Intervention, ProbeSettings
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


def changes_of(lm: hybridlm.LM) -> list[list[Intervention]]:
    """Return every kind of intervention, one per text; the last texts are unchanged."""
    width, sites = lm.config.hidden_size, lm.model.sites()
    vector = RNG.normal(size=width)
    results: list[list[Intervention]] = [
        [
            Intervention.add(vector, hidden_state=1),
            Intervention.replace_hidden_state(vector, hidden_state=2, positions=3),
        ]
    ]
    for kind in ("attention", "recurrent", "expert"):
        for layer in [i for i, each in enumerate(sites) if kind in each][:1]:
            last, mixer = sites[layer][kind] - 1, None if kind == "expert" else kind
            ablate: Any = Intervention.ablate_expert if kind == "expert" else Intervention.ablate_head
            results.append([ablate(layer, last, **({"mixer": mixer} if mixer else {}))])
    states = lm.score(TEXTS[7:], states=True, positions=[4])[0].captured
    assert states is not None
    patch = Intervention.patch(states, 4, at=2)
    scale = next(change for change in patch if change.array in ("recurrent", "conv"))
    head = 1 if scale.array == "recurrent" else None
    results.append([Intervention.scale_state(scale.layer, 0.25, head=head, array=scale.array, positions=[3, 5])])
    return [*results, patch, [], []]


def check_captured(actual: Any, expected: Any, tolerance: float) -> None:
    assert actual.positions.tolist() == expected.positions.tolist()
    for i, rows in expected.hidden_states.items():
        np.testing.assert_allclose(actual.hidden_states[i], rows, rtol=0, atol=tolerance)
    assert actual.states.keys() == expected.states.keys() and actual.dims == expected.dims
    for name, states in expected.states.items():
        np.testing.assert_allclose(actual.states[name], states, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) for name in FAMILIES])
def test_reads_and_changes_match_one_device(tmp_path: Path, name: str, axes: tuple[int, int, int]) -> None:
    model, over = loaded(name, tmp_path, axes)
    tolerance = TOLERANCES[model.config.family.removesuffix("_text")]
    changes = changes_of(model)
    texts, layers = TEXTS[: len(changes)], [0, 1, model.config.num_layers]
    plain = over.score(texts)
    request: dict[str, Any] = {"hidden_states": layers, "states": True, "positions": [0, 4, 8]}
    for a, b in zip(over.score(texts, **request), model.score(texts, **request), strict=True):
        check_captured(a.captured, b.captured, tolerance)
    actual, expected = (lm.score(texts, interventions=changes) for lm in (over, model))
    for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=tolerance)
        mask = a.logprobs.tobytes() == plain[i].logprobs.tobytes()
        # A text may have no token that is routed to the expert.
        assert mask == (not changes[i]) or changes[i][0].kind == "ablate_expert"
    settings: dict[str, Any] = {"max_tokens": 3, "ignore_eos": True, "logprobs": 0, "hidden_states": layers}
    generated = [lm.generate(texts, interventions=changes, **settings) for lm in (over, model)]
    for a, b in zip(*generated, strict=True):
        if a.token_ids == b.token_ids:
            check_captured(a.captured, b.captured, tolerance)
            np.testing.assert_allclose(a.logprobs or (), b.logprobs or (), rtol=0, atol=tolerance)
    assert sum(a.token_ids == b.token_ids for a, b in zip(*generated, strict=True)) > len(texts) // 2
    assert all(certificate.holds for certificate in over.certificates.values())


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
