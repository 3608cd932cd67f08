"""Interventions in scoring against changed weights, states and single layers; other lanes stay."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoder_lanes import layer_by_layer
from disturbed_lanes import step_shape
from named_states import states_by_place
from patched_functions import plant_fault
from tiny_variants import OTHER_GOLDENS

import hybridlm
from hybridlm import Intervention, ProbeSettings, SequenceState
from hybridlm.scoring.scorer import scores
from ir_passes import IsolationError

GOLDEN = Path(__file__).parents[2] / "golden"
RNG = np.random.default_rng(11)
TEXTS = [[int(i) for i in RNG.integers(3, 90, 12)] for _ in range(8)]
MODELS = ["dense", *(pytest.param(name, marks=pytest.mark.long) for name in ("next_old_fields", *OTHER_GOLDENS))]
CLOSE: Any = {"atol": 3e-4, "rtol": 3e-4}


@pytest.fixture(scope="module", params=MODELS)
def lm(request: pytest.FixtureRequest, text_lm: hybridlm.LM) -> hybridlm.LM:
    if request.param == "dense":
        return text_lm
    return hybridlm.load(GOLDEN / request.param, lanes=3, context=140, dtype="float32", chunk=5)


def chosen(logits: Any, text: list[int]) -> np.ndarray:
    """Log-probabilities of a text's tokens but the first."""
    return np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), np.array(text)[1:, None], 1)[:, 0]


def with_added(lm: hybridlm.LM) -> Callable[[list[int], np.ndarray], np.ndarray]:
    """Log-probabilities with vectors [index, token, hidden] added, by layers that are called one by one."""
    run = layer_by_layer(lm.model, lm.engine.new_rows(1).layers)
    return lambda text, added: chosen(run(text[:-1], added), text)


def with_params(lm: hybridlm.LM, text: list[int], changed: Mapping[str, Any]) -> np.ndarray:
    return chosen(lm.forward(text[:-1], params=lm.params | dict(changed)).logits, text)


def without_head(lm: hybridlm.LM, layer: int, head: int, kind: str) -> dict[str, Any]:
    """The output projection of a mixer without the columns of one head."""
    count = lm.model.sites()[layer][kind]
    ends = ("o_proj",) if kind == "attention" else ("out_proj",)
    (name,) = [n for n in lm.params if n.startswith(f"layers.{layer}.") and n.endswith(ends)]
    weight = np.array(lm.params[name])
    size = weight.shape[1] // count
    weight[:, head * size : (head + 1) * size] = 0
    return {name: jnp.asarray(weight)}


def without_expert(lm: hybridlm.LM, layer: int, expert: int) -> dict[str, Any]:
    (name,) = [
        n for n in lm.params if n.startswith(f"layers.{layer}.") and n.endswith("down_proj") and lm.params[n].ndim == 3
    ]
    return {name: lm.params[name].at[expert].set(0.0)}


def changed_state(
    lm: hybridlm.LM, text: list[int], position: int, change: Callable[[int, str, np.ndarray], np.ndarray]
) -> np.ndarray:
    """Log-probabilities where the state after token `at` is changed, by `forward` in two parts."""
    first = lm.forward(text[: position + 1], return_states=True)
    assert first.states is not None
    layers = first.states.layers
    changed = {
        id(leaf): jnp.asarray(change(*place, np.array(leaf)[0])[None], leaf.dtype)
        for place, leaf in states_by_place(layers).items()
    }
    state = SequenceState(first.states.position, jax.tree.map(lambda leaf: changed.get(id(leaf), leaf), layers))
    rest = lm.forward(text[position + 1 : -1], state=state)
    return chosen(jnp.concatenate([first.logits, rest.logits]), text)


@pytest.mark.slow
def test_vectors_and_ablations(lm: hybridlm.LM) -> None:
    layers, sites = lm.config.num_layers, lm.model.sites()
    added = np.zeros((3, layers + 1, 11, lm.config.hidden_size), np.float32)
    vectors = RNG.normal(size=(3, lm.config.hidden_size)).astype(np.float32)
    added[0, 0], added[1, layers, 3] = vectors[0], vectors[1]
    added[2, 1, [2, 3, 4, 8]], added[2, layers - 1, 6:] = vectors[2], vectors[1]
    if layers == 2:  # the same index twice
        added[2, 1, 6:] = vectors[1] + np.array([0, 0, 1, 0, 0], np.float32)[:, None] * vectors[2]
    interventions: list[Any] = [
        [Intervention.add(vectors[0], hidden_state=0)],
        Intervention.add(vectors[1].tolist(), hidden_state=layers, positions=3),
        [
            Intervention.add(vectors[2], hidden_state=1, positions=[8, 2, 3, 4]),
            Intervention.add(vectors[1], hidden_state=layers - 1, positions=range(6, 12)),
        ],
    ]
    run = with_added(lm)
    expected = [run(TEXTS[i], added[i]) for i in range(3)]
    for kind in ("recurrent", "attention", "expert"):
        layers_of_kind = [i for i, each in enumerate(sites) if kind in each]
        if layers_of_kind and len(interventions) < 7:
            layer, unit, text = layers_of_kind[-1], sites[layers_of_kind[-1]][kind] - 1, TEXTS[len(interventions)]
            mixer: Any = None if kind == "expert" else kind
            interventions.append(
                [
                    Intervention.ablate_expert(layer, unit)
                    if kind == "expert"
                    else Intervention.ablate_head(layer, unit, mixer=mixer)
                ]
            )
            params = without_expert(lm, layer, unit) if kind == "expert" else without_head(lm, layer, unit, kind)
            expected.append(with_params(lm, text, params))
    interventions.append(None)
    texts = TEXTS[: len(interventions)]
    plain, scores = lm.score(texts), lm.score(texts, interventions=interventions)
    for score, plain_score, wanted in zip(scores[:-1], plain, expected, strict=False):
        np.testing.assert_allclose(score.logprobs[1:], wanted, **CLOSE)
        assert np.abs(score.logprobs - plain_score.logprobs)[1:].max() > 1e-3, "the change is seen"
    assert scores[-1].logprobs.tobytes() == plain[-1].logprobs.tobytes()


def test_hidden_states_of_another_run(lm: hybridlm.LM) -> None:
    """Replacing equals adding the difference; the last of two vectors at a place counts."""
    index, positions, text = lm.config.num_layers - 1, [2, 7], TEXTS[1]
    donor = lm.score(TEXTS[6:7], hidden_states=[index], positions=positions)[0].captured
    assert donor is not None
    rows = donor.hidden_states[index]
    hidden = np.asarray(lm.forward(text[:-1]).hidden_states[index])
    added = np.zeros((lm.config.num_layers + 1, 11, lm.config.hidden_size), np.float32)
    added[index, positions] = rows - hidden[positions]
    patch = [
        Intervention.replace_hidden_state(row, hidden_state=index, positions=p)
        for row, p in zip(rows, positions, strict=True)
    ]
    nan = Intervention.replace_hidden_state(np.full(hidden.shape[1], np.nan), hidden_state=index, positions=positions)
    plain, scores = lm.score(TEXTS[:3]), lm.score(TEXTS[:3], interventions=[[], [nan, *patch], []])
    np.testing.assert_allclose(scores[1].logprobs[1:], with_added(lm)(text, added), **CLOSE)
    assert np.abs(scores[1].logprobs - plain[1].logprobs)[1:].max() > 1e-3, "the change is seen"
    for i in (0, 2):
        assert scores[i].logprobs.tobytes() == plain[i].logprobs.tobytes()


@pytest.mark.slow
def test_states(lm: hybridlm.LM) -> None:
    places = {name: leaf.shape[1:] for name, leaf in states_by_place(lm.engine.new_rows(1).layers).items()}
    donor = lm.score([TEXTS[7]], states=True, positions=[2])[0].captured
    assert donor is not None
    layer, array = sorted(places, key=lambda name: name[1] != "recurrent")[0]
    value = RNG.normal(size=places[layer, array]).astype(np.float32)
    head = None if array == "conv" else places[layer, array][0] - 1

    def scaled(i: int, name: str, state: np.ndarray) -> np.ndarray:
        if (i, name) == (layer, array):
            state[slice(None) if head is None else head] *= np.float32(0.25)
        return state

    def replaced(i: int, name: str, state: np.ndarray) -> np.ndarray:
        return value if (i, name) == (layer, array) else state

    def patched(i: int, name: str, state: np.ndarray) -> np.ndarray:
        return donor.state(i, name)[0] if (i, name) in places else state

    interventions = [
        [Intervention.scale_state(layer, 0.25, head=head, array=array, positions=4)],
        [Intervention.replace_state(layer, value, array=array, positions=[6])],
        Intervention.patch(donor, 2, at=3),
        [],
    ]
    texts = TEXTS[:4]
    expected = [
        changed_state(lm, text, position, change)
        for text, position, change in zip(texts, (4, 6, 3), (scaled, replaced, patched), strict=False)
    ]
    plain, scores = lm.score(texts), lm.score(texts, interventions=interventions)
    for score, plain_score, wanted in zip(scores[:-1], plain, expected, strict=False):
        np.testing.assert_allclose(score.logprobs[1:], wanted, **CLOSE)
        assert np.abs(score.logprobs - plain_score.logprobs)[1:].max() > 1e-4, "the change is seen"
    assert scores[-1].logprobs.tobytes() == plain[-1].logprobs.tobytes()
    edits = [certificate for name, certificate in lm.certificates.items() if name.startswith("edit states")]
    assert edits and all(any(line.startswith("args[2]: Lane(") for line in each.contract) for each in edits)


def test_an_array_that_is_changed_later_does_not_count() -> None:
    vector = np.ones(3, np.float32)
    change = Intervention.add(vector, hidden_state=0)
    vector[:] = 5
    assert change.value is not None and change.value.tolist() == [1, 1, 1]


def test_zero_after_every_token(text_lm: hybridlm.LM) -> None:
    """A head without memory: its state is zero before each token and NaN never stays."""
    score = text_lm.score([TEXTS[0]], interventions=[Intervention.scale_state(0, 0, head=2)], states=True)[0]
    assert score.captured is not None
    state = score.captured.state(0)[0]
    assert not state[2].any() and state[1].any()
    prefix = TEXTS[0][:1]
    shorter = text_lm.score([TEXTS[0]], interventions=[Intervention.scale_state(0, 0, positions=range(5))], states=True)
    rest, fresh = shorter[0].captured, text_lm.score([prefix], states=True)[0].captured
    assert rest is not None and fresh is not None
    with pytest.raises(ValueError, match="below 12"):
        text_lm.score([TEXTS[0]], interventions=[Intervention.scale_state(0, 0, positions=12)])


def test_a_disturbed_lane_changes_no_bit_of_another(lm: hybridlm.LM) -> None:
    """Interventions with NaN change neither scores nor captures of other lanes."""
    nan, (layer, array) = np.full(lm.config.hidden_size, np.nan), edited_places(lm)[0]
    kind = next(
        kind for kind in ("recurrent", "attention", "expert") if any(kind in kinds for kinds in lm.model.sites())
    )
    (place, *_) = [i for i, kinds in enumerate(lm.model.sites()) if kind in kinds]
    mixer: Any = kind
    ablate = (
        Intervention.ablate_expert(place, 1) if kind == "expert" else Intervention.ablate_head(place, 1, mixer=mixer)
    )
    other = [ablate, Intervention.add(np.ones(len(nan)), hidden_state=2, positions=5)]
    shape = states_by_place(lm.engine.new_rows(1).layers)[layer, array].shape[1:]
    state = np.full(shape, np.nan, np.float32)

    def run(first: list[Intervention]) -> list[Any]:
        settings = ProbeSettings([1], [[3, 9]] * 4, True, None, [first, other, [], first])
        texts = [(*text,) for text in TEXTS[:4]]
        probing = lm.text_model.probing(settings, [hybridlm.scoring.items.ScoredIds(text) for text in texts], None)  # type: ignore[attr-defined]
        return scores(lm.engine, texts, probing=probing)

    mild = run(
        [
            Intervention.add(np.zeros(len(nan)), hidden_state=1, positions=2),
            Intervention.scale_state(layer, 1.0, array=array, positions=4),
        ]
    )
    bad = run(
        [
            Intervention.add(nan, hidden_state=1, positions=2),
            Intervention.replace_state(layer, state, array=array, positions=4),
        ]
    )
    for mild_score, two in zip(mild[1:3], bad[1:3], strict=True):
        assert mild_score.logprobs.tobytes() == two.logprobs.tobytes()
        assert mild_score.captured.hidden_states[1].tobytes() == two.captured.hidden_states[1].tobytes()
        assert all(
            mild_score.captured.states[name].tobytes() == array.tobytes() for name, array in two.captured.states.items()
        )
    for lane in (0, 3):
        assert np.isnan(bad[lane].logprobs[3:]).all()
    with pytest.raises(hybridlm.NumericalError):
        lm.score(TEXTS[:1], interventions=[Intervention.add(nan, hidden_state=1)])


def edited_places(lm: hybridlm.LM) -> list[tuple[int, str]]:
    """Return layers and arrays of editable states, recurrences first."""
    return sorted(states_by_place(lm.engine.new_rows(1).layers), key=lambda place: place[1] != "recurrent")


def test_steps_are_plain_where_nothing_is_asked_and_slots_are_few(text_lm: hybridlm.LM) -> None:
    programs = text_lm.engine.programs
    unit = np.ones(text_lm.config.hidden_size)
    text_lm.score(TEXTS[:3], interventions=[[], None, []])
    text_lm.score(
        TEXTS[:3], interventions=[[Intervention.add(unit, hidden_state=1, positions=p) for p in (1, 4, 7)], [], []]
    )
    shape = step_shape(text_lm, "score", 5, top=0, probes=(0, 0, 4, 0))
    assert shape in programs.shapes
    count = len(programs.shapes)
    additions = [Intervention.add(-unit, hidden_state=2, positions=p) for p in (2, 5, 8, 10)]
    text_lm.score(TEXTS[:3], interventions=[additions, additions[:2], []])
    assert len(programs.shapes) == count
    certificate = text_lm.certificates[str(shape)]
    assert any(line.startswith("args[2].probes: Lane(") for line in certificate.contract)
    every = [Intervention.ablate_head(0, 0, positions=2 * i) for i in range(6)] * 11
    with pytest.raises(ValueError, match="at most 64 ablations.*66"):
        text_lm.score(TEXTS[:1], interventions=every)


def test_a_hook_that_reaches_another_lane_is_refused(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(residual: Any) -> Any:
        def wrong(self: Any, x: jax.Array, index: int) -> jax.Array:
            vector = jnp.roll(jnp.asarray(self._probes.vectors.vector), 1, axis=0)
            self._probes = self._probes._replace(vectors=self._probes.vectors._replace(vector=vector))
            return residual(self, x, index)

        return wrong

    plant_fault(monkeypatch, "hybridlm.steps.hooks.ProbeHooks.residual", faulty)
    lm = hybridlm.load(text_lm.path, lanes=3, context=256, chunk=5, dtype="float32")  # which has compiled no step
    with pytest.raises(IsolationError):
        lm.score(TEXTS[:2], interventions=[Intervention.add(np.ones(lm.config.hidden_size), hidden_state=1)])


def test_lanes_that_ask_for_nothing_are_in_plain_steps(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes without requests keep their bits in scoring and generation at any compiler."""
    run, dispatched = text_lm.engine.run, []

    def look(shape: Any, pool: Any, rows: Any, inputs: Any, **options: Any) -> Any:
        dispatched.append((inputs.probes is not None, np.flatnonzero(np.asarray(inputs.batch.lengths)).tolist()))
        return run(shape, pool, rows, inputs, **options)

    monkeypatch.setattr(text_lm.engine, "run", look)
    head = [Intervention.ablate_head(1, 0)]
    text_lm.score(TEXTS[:3], interventions=[head, [], head])
    assert {(probed, *lanes) for probed, lanes in dispatched} == {(True, 0, 2), (False, 1)}
    dispatched.clear()
    text_lm.generate(TEXTS[:3], max_tokens=4, min_tokens=4, interventions=[[], head, []])
    assert {(probed, len(lanes)) for probed, lanes in dispatched} == {(True, 1), (False, 2)}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Intervention.add(np.ones(3), hidden_state=1), r"vector: expected \[32\], got \[3\]"),
        (lambda: Intervention.add(np.ones(32), hidden_state=3), "hidden_state: expected 0..2"),
        (lambda: Intervention.replace_hidden_state(np.ones((2, 32)), hidden_state=1), r"vector: .*got \[2, 32\]"),
        (lambda: Intervention.ablate_head(2, 0), "layer: expected 0..1"),
        (lambda: Intervention.ablate_head(0, 8), "head: expected 0..7, got 8"),
        (
            lambda: Intervention.ablate_head(0, 0, mixer="attention"),
            "no heads of attention mixers; layers with heads: 0, 1",
        ),
        (lambda: Intervention.ablate_expert(0, 0), "layer 0 of qwen3_5 has no experts; layers with experts: none"),
        (lambda: Intervention.scale_state(1, 0.5), "layer 1 of qwen3_5 has no recurrent state; layers with one: 0"),
        (lambda: Intervention.scale_state(0, 0.5, head=8), "head: expected 0..7, got 8"),
        (lambda: Intervention.replace_state(0, np.ones((8, 16))), r"value: expected \[8, 8, 16\], got \[8, 16\]"),
        (lambda: Intervention.replace_state(0, np.ones((2, 8, 16)), head=1), r"value: expected \[8, 16\]"),
        (lambda: Intervention.scale_state(0, 0.5, head=1, array="conv"), "head"),
        (lambda: Intervention.scale_state(0, 0.5, array="key"), "layer 0 of qwen3_5 has no key state"),
        (lambda: Intervention.ablate_head(-1, 0), "layer: expected a whole number"),
        (lambda: Intervention.ablate_head(0, 0, positions=[]), "positions: is empty"),
        (lambda: Intervention.ablate_head(0, 0, positions=[3, -1]), "positions: expected a whole number"),
        (lambda: Intervention.ablate_head(0, 0, mixer="conv"), "mixer"),  # type: ignore[arg-type]
    ],
)
def test_what_the_model_lacks_is_refused_by_name(
    text_lm: hybridlm.LM, make: Callable[[], Intervention], words: str
) -> None:
    steps = text_lm.engine.stats["steps"]
    with pytest.raises(ValueError, match=words):
        text_lm.score(TEXTS[:1], interventions=[make()])
    assert text_lm.engine.stats["steps"] == steps


def test_wrong_arguments(text_lm: hybridlm.LM) -> None:
    head = Intervention.ablate_head(0, 0)
    prefix = text_lm.prefix([5, 6])
    for error, words, texts, settings in (
        (TypeError, "interventions", TEXTS[:1], {"interventions": "none"}),
        (TypeError, r"interventions\[0\].*Intervention", TEXTS[:1], {"interventions": [3]}),
        (ValueError, "each of 2 scores", TEXTS[:2], {"interventions": [[head]]}),
        (ValueError, "prefix", TEXTS[:1], {"interventions": [head], "prefix": prefix}),
    ):
        with pytest.raises(error, match=words):
            text_lm.score(texts, **settings)  # type: ignore[arg-type]
    for make in (
        lambda: Intervention.add("abc", hidden_state=0),
        lambda: Intervention.scale_state(0, [1.0, 2.0]),  # type: ignore[arg-type]
        lambda: Intervention.ablate_head(0, 0, positions=object()),  # type: ignore[arg-type]
    ):
        with pytest.raises((TypeError, ValueError)):
            make()
