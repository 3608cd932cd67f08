"""Captured hidden states and states: equal to `forward`, in files, without changing scores."""

import gc
import re
import resource
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from named_states import states_by_place
from safetensors.numpy import load_file
from tiny_variants import OTHER_GOLDENS

import hybridlm

GOLDEN = Path(__file__).parents[2] / "golden"
RNG = np.random.default_rng(7)
TEXTS = [[int(i) for i in RNG.integers(3, 90, count)] for count in (13, 1, 6, 11)]
MODELS = ["dense", *(pytest.param(name, marks=pytest.mark.long) for name in ("next_old_fields", *OTHER_GOLDENS))]


@pytest.fixture(scope="module", params=MODELS)
def lm(request: pytest.FixtureRequest, text_lm: hybridlm.LM) -> hybridlm.LM:
    """Families of every kind of state; the long run adds three without cache dtype."""
    if request.param == "dense":
        return text_lm
    return hybridlm.load(GOLDEN / request.param, lanes=3, context=140, dtype="float32", chunk=5)


def states_after(lm: hybridlm.LM, tokens: list[int]) -> dict[tuple[int, str], np.ndarray]:
    """The states that `forward` leaves, by layer and array."""
    return states_of(lm.forward(tokens, return_states=True))


def states_of(output: hybridlm.ForwardOutput) -> dict[tuple[int, str], np.ndarray]:
    """Recurrent and convolution states of an output, by layer and array."""
    final = output.states
    assert final is not None
    return {name: np.asarray(array)[0] for name, array in states_by_place(final.layers).items()}


def test_hidden_states_equal_forward(lm: hybridlm.LM) -> None:
    layers = list(range(lm.config.num_layers + 1))
    scores = lm.score(TEXTS, hidden_states=layers, states=True, positions=[[3, 12], [0], [5], [0, 4, 5]])
    for text, item, positions in zip(TEXTS, scores, ([3, 12], [0], [5], [0, 4, 5]), strict=True):
        captured = item.captured
        assert captured is not None and captured.positions.tolist() == positions
        output = lm.forward(text, return_states=True)
        for i in layers:
            expected = np.asarray(output.hidden_states[i])[positions]
            np.testing.assert_allclose(captured.hidden_states[i], expected, atol=2e-4, rtol=2e-4)
        for row, position in enumerate(positions[-1:], len(positions) - 1):
            last = position == len(text) - 1
            expected = states_of(output) if last else states_after(lm, text[: position + 1])
            assert len(captured.states) == len(expected) > 0
            for (layer, array), values in expected.items():
                saved = captured.state(layer, array)[row]
                assert saved.dtype == values.dtype and saved.shape == values.shape
                np.testing.assert_allclose(saved.astype(np.float32), values.astype(np.float32), atol=2e-4, rtol=2e-3)
        assert captured.dims and all(dims[0] == "position" for dims in captured.dims.values())


def test_reads_depend_on_no_other_text(text_lm: hybridlm.LM) -> None:
    plain = text_lm.score(TEXTS)
    read = text_lm.score(TEXTS, hidden_states=[1, 2], positions="all")
    for positions in ("all", "first"):
        with pytest.raises(ValueError, match="positions, capture_to: expected hidden_states or states"):
            text_lm.score(TEXTS, positions=positions)
    for score, other in zip(plain, read, strict=True):
        np.testing.assert_allclose(score.logprobs, other.logprobs, atol=1e-5)
        assert other.captured is not None and other.captured.positions.tolist() == list(range(len(score.token_ids)))
    captured = text_lm.score([[5] * 9, TEXTS[2], [6], [7] * 20], hidden_states=[1, 2], positions="all")[1].captured
    neighbour = read[2].captured
    assert captured is not None and neighbour is not None
    assert all(captured.hidden_states[i].tobytes() == neighbour.hidden_states[i].tobytes() for i in (1, 2))


def test_states_of_several_positions_equal_single_reads(text_lm: hybridlm.LM) -> None:
    every = text_lm.score([TEXTS[0], TEXTS[2], TEXTS[1]], states=True, positions="all")
    for text, item in zip((TEXTS[0], TEXTS[2]), every[:2], strict=True):
        assert item.captured is not None and not item.captured.hidden_states
        for position in {0, 5, len(text) - 1}:  # lengths of the texts that have programs
            expected = states_after(text_lm, text[: position + 1])[0, "recurrent"]
            np.testing.assert_allclose(item.captured.state(0)[position], expected, atol=1e-5)


@pytest.mark.long
def test_behind_a_prefix_and_a_prompt(text_lm: hybridlm.LM) -> None:
    captured = text_lm.score([TEXTS[0]], hidden_states=[2], states=True)[0].captured
    prefix = text_lm.prefix(TEXTS[0][:6])
    rest = text_lm.score([TEXTS[0][6:]], prefix=prefix, hidden_states=[2], states=True)[0].captured
    item = {"prompt": TEXTS[0][:6], "completion": TEXTS[0][6:]}
    answer = text_lm.score([item], hidden_states=[2], positions="all")[0].captured
    assert captured is not None and rest is not None and answer is not None
    assert captured.positions.tolist() == rest.positions.tolist() == [12]
    np.testing.assert_allclose(rest.hidden_states[2], captured.hidden_states[2], atol=1e-4)
    np.testing.assert_allclose(rest.state(0), captured.state(0), atol=1e-5)
    assert answer.positions.tolist() == list(range(6, 13))
    with pytest.raises(ValueError, match="6..12"):
        text_lm.score([TEXTS[0][6:]], prefix=prefix, states=True, positions=[5])


@pytest.mark.slow
def test_nothing_is_compiled_for_other_layers_and_positions(text_lm: hybridlm.LM) -> None:
    """Other layers, positions and counts compile nothing; captures equal `forward`."""
    stream = text_lm.forward(TEXTS[0]).hidden_states
    text_lm.score(TEXTS, hidden_states=[0, 2], positions=[[3, 12], [], [5, 1], [0, 10]])
    compiled = text_lm.stats["compiled"]
    for layers, positions in (([1, 2], [2, 11]), ([0, 1], [3, 12]), ([2, 1], [0, 1])):
        captured = text_lm.score(TEXTS, hidden_states=layers, positions=[positions, [0], [], [4]])[0].captured
        assert captured is not None and sorted(captured.hidden_states) == sorted(layers)
        for layer, rows in captured.hidden_states.items():
            np.testing.assert_allclose(rows, np.asarray(stream[layer])[positions], atol=2e-4, rtol=2e-4)
    mask = np.isin(np.arange(13), (2, 9))
    scores = text_lm.score(TEXTS, hidden_states=[0, 2], positions=[mask, "last", [], [1]])
    assert [item.captured and item.captured.positions.tolist() for item in scores] == [[2, 9], [0], None, [1]]
    assert text_lm.stats["compiled"] == compiled


def test_files_hold_the_arrays_of_memory(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"hidden_states": [0, 2], "states": True, "positions": [[1, 5], [], [5], "last"]}
    scores = text_lm.score(TEXTS, **settings)
    written = text_lm.score(TEXTS, **settings, capture_to=tmp_path / "texts")
    assert sorted(path.name for path in (tmp_path / "texts").iterdir()) == [f"{i:06}.safetensors" for i in (0, 2, 3)]
    assert scores[1].captured is None and written[1].captured is None
    for memory, file in ((scores[i].captured, written[i].captured) for i in (0, 2, 3)):
        assert memory is not None and file is not None and file.path is not None
        arrays = load_file(file.path)
        assert arrays["positions"].tolist() == memory.positions.tolist()
        for i in (0, 2):
            assert arrays[f"hidden_states[{i}]"].tobytes() == memory.hidden_states[i].tobytes()
            assert file.hidden_states[i].tobytes() == memory.hidden_states[i].tobytes()
        assert set(arrays) == {"positions", "hidden_states[0]", "hidden_states[2]", *memory.states}
        for name, values in memory.states.items():
            assert arrays[name].tobytes() == file.states[name].tobytes() == values.tobytes()
        memory.save(tmp_path / "saved.safetensors")
        assert {name: array.tobytes() for name, array in load_file(tmp_path / "saved.safetensors").items()} == {
            name: array.tobytes() for name, array in arrays.items()
        }


def test_more_files_than_a_process_may_open(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    """Files of finished sequences are closed; their arrays are read on use."""
    settings: dict[str, Any] = {"hidden_states": [1], "states": True, "positions": [0]}
    text_lm.score(TEXTS[2:3] * 4, **settings)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 50, hard))
    try:
        scores = text_lm.score(TEXTS[2:3] * 60, **settings, capture_to=tmp_path / "texts")
        states = [item.captured.state(0).tobytes() for item in scores if item.captured is not None]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(states) == 60 and set(states) == {states[0]}


@pytest.mark.long
@pytest.mark.parametrize("ending", ["", ".parquet"])
def test_memory_holds_texts_in_flight_only(
    text_lm: hybridlm.LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """Returned captures need memory per text; captures in files do not."""
    monkeypatch.setattr("hybridlm.requests.captured_table.MAX_GROUP_BYTES", 1 << 15)
    texts: Any = [TEXTS[0] * 4] * 40
    settings: dict[str, Any] = {"hidden_states": [0, 1, 2], "positions": "all"}

    def peak(count: int, **where: Any) -> int:
        gc.collect()
        tracemalloc.start()
        try:
            assert len(text_lm.score(texts[:count], **settings, **where)) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    text_lm.score(texts[:1], **settings, capture_to=tmp_path / f"first{ending}")  # compiles and imports
    in_files = [peak(count, capture_to=tmp_path / f"{count}{ending}") for count in (10, 40)]
    in_memory = [peak(count) for count in (10, 40)]
    added = 30 * len(texts[0]) * 3 * text_lm.config.hidden_size * 4
    assert (in_memory[1] - in_memory[0]) - (in_files[1] - in_files[0]) > 0.8 * added


def test_nothing_is_left_of_a_run_that_fails(text_lm: hybridlm.LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    read = text_lm.engine.runner.read
    calls = iter(range(3))

    def fails(outputs: Any) -> Any:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return read(outputs)

    monkeypatch.setattr(text_lm.engine.runner, "read", fails)
    with pytest.raises(KeyboardInterrupt):
        text_lm.score([TEXTS[0], TEXTS[3]], states=True, positions="all", capture_to=tmp_path / "texts")
    assert list((tmp_path / "texts").iterdir()) == []


def test_several_processes_are_refused(text_lm: hybridlm.LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.jsonl").write_text('{"token_ids": [5, 6]}\n')
    monkeypatch.setattr(type(text_lm.engine.placement), "several_processes", property(lambda self: True))
    reads: dict[str, Any] = {"hidden_states": [1]}
    for run in (
        lambda: text_lm.score(TEXTS, **reads),
        lambda: text_lm.score(TEXTS, interventions=[]),
        lambda: text_lm.generate(TEXTS, **reads),
        lambda: text_lm.score_file(tmp_path / "in.jsonl", tmp_path / "out.jsonl", interventions=[]),
        lambda: text_lm.forward(TEXTS[0]),
    ):
        with pytest.raises(ValueError, match="not supported for a model over several processes"):
            run()


@pytest.mark.parametrize(("settings", "words"), [
    ({"hidden_states": [3]}, "hidden_states.*0..2.*3"),
    ({"hidden_states": [-1]}, "hidden_states.*0..2"),
    ({"hidden_states": [1.0]}, "hidden_states"),
    ({"hidden_states": [1], "positions": "first"}, "positions.*first"),
    ({"hidden_states": [1], "positions": [13]}, "positions, score 0.*0..12.*13"),
    ({"hidden_states": [1], "positions": [[1]]}, "positions.*each of 2.*1"),
    ({"hidden_states": [1], "positions": [[1], [True]]}, r"positions\[1\].*mask of 6.*1"),
    ({"positions": [1]}, "positions.*hidden_states or states"),
    ({"capture_to": "here"}, "capture_to.*hidden_states or states"),
])  # fmt: skip
def test_inconsistent_input_is_refused(text_lm: hybridlm.LM, settings: Any, words: str) -> None:
    steps = text_lm.engine.stats["steps"]
    with pytest.raises(ValueError, match=words):
        text_lm.score([TEXTS[0], TEXTS[2]], **settings)
    for wrong in ({"states": "all"}, {"hidden_states": 3}, {"hidden_states": "all"}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            text_lm.score([TEXTS[0]], **wrong)  # type: ignore[arg-type]
    assert text_lm.engine.stats["steps"] == steps


def test_a_folder_is_not_written_twice(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        text_lm.score([TEXTS[0]], states=True, capture_to=tmp_path)


def test_it_is_refused_with_a_sanitizer(sanitized_lm: hybridlm.LM) -> None:
    with pytest.raises(ValueError, match="sanitize"):
        sanitized_lm.score([TEXTS[0]], states=True)


def test_names_match_contracts(text_lm: hybridlm.LM) -> None:
    captured = text_lm.score([TEXTS[0]], states=True)[0].captured
    assert captured is not None and "1 positions, 0 hidden states, 2 states" in repr(captured)
    page = captured._repr_html_()
    assert all(name in page for name in captured.states) and "[position=1, value_head=8, value=" in page
    stated = {
        name for c in text_lm.certificates.values() for name in re.findall(r"layers\[\d+\][\w.\[\]]+", c.to_json())
    }
    assert set(captured.states) <= stated
    with pytest.raises(ValueError, match="layer 1"):
        captured.state(1)
    with pytest.raises(ValueError, match="5"):
        captured.row(5)
