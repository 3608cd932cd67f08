"""Over a mesh, reads and changes inside a model equal those on one device."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison import TOLERANCES
from random_checkpoint import FAMILIES, MESHES, write_random_checkpoint

import hybridlm
from hybridlm import Intervention

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
