"""Choice of the lanes for which the int8 head is used, and equality of these steps with the others."""

import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from perturbation import influence
from random_checkpoint import write_random_checkpoint

import hybridlm
from hybridlm import loading
from hybridlm.cpu_tuning import int8_head_choice, tuning
from hybridlm.cpu_tuning.int8_head_choice import ChosenInt8Head, chosen_int8_head
from hybridlm.cpu_tuning.packed_u32 import packed_u32
from hybridlm.cpu_tuning.store import TimeStore
from hybridlm.cpu_tuning.variants import Product
from hybridlm.devices.machine import Machine
from hybridlm.programs.shapes import Shape
from hybridlm.requests.sampling_operands import sampling_arrays
from hybridlm.requests.sequence import ActiveSequence, Request, ResolvedParams
from hybridlm.sampling import int8_head as sampling_int8_head
from hybridlm.sampling.int8_head import build_int8_head, int8_copy_bytes
from hybridlm.sampling.sampling import BESIDE_GREEDY, FILTERED, GREEDY, SAMPLED

pytestmark = pytest.mark.slow

HEAD = jnp.asarray(np.random.default_rng(0).normal(size=(64, 16)), jnp.bfloat16)
LANES, CONTEXT, CHUNK = 4, 140, 5
SETTINGS: dict[str, Any] = {"lanes": LANES, "context": CONTEXT, "chunk": CHUNK, "dtype": "bfloat16"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[Any, float]:
    """Fake times of the search, by lanes, instead of the clock; all logits take 1 s for 1, 2, 4, 8 and 16 lanes."""
    found = dict.fromkeys((1, 2, 4, 8, 16), 0.5)
    monkeypatch.setattr(int8_head_choice, "MIN_ELEMENTS", 1)
    monkeypatch.setattr(int8_head_choice, "_seconds", lambda lanes, int8_head: found[lanes])
    for lanes in found:
        keep(tmp_path, Product.of(lanes, HEAD), 1.0)
    return found


def keep(directory: Path, product: Product, seconds: float) -> None:
    times(directory).keep(product, dict.fromkeys(product.variants, seconds))


def times(directory: Path) -> TimeStore:
    return TimeStore(directory, Machine.here())


def test_it_is_made_for_a_quarter_and_used_where_it_is_faster(tmp_path: Path, clock: dict[Any, float]) -> None:
    clock |= {1: 0.96, 2: 0.81, 4: 0.79, 8: 0.94}
    found = chosen_int8_head(HEAD, [1, 2, 4, 8, 16, 32], times(tmp_path), None, progress=False)
    assert found is not None and found.lanes == {2, 4, 8}
    assert found.bytes == int8_copy_bytes(HEAD) == 64 * (16 + 12)
    expected = build_int8_head(words(HEAD))
    for one, other in zip(found.int8_head, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert chosen_int8_head(HEAD, [1, 2, 8], times(tmp_path), None) is None


def words(head: jax.Array) -> jax.Array:
    found = packed_u32(head)
    assert found is not None
    return found


def test_what_was_measured_is_kept(tmp_path: Path, clock: dict[Any, float], capsys: pytest.CaptureFixture[str]) -> None:
    assert chosen_int8_head(HEAD, [1, 2], times(tmp_path), None, progress=True) is not None
    assert "measuring the head" in capsys.readouterr().err
    clock |= {1: 2.0, 2: 2.0}
    found = chosen_int8_head(HEAD, [1, 2, 4], times(tmp_path), None, progress=True)
    assert found is not None and found.lanes == {1, 2, 4}
    assert "4 lanes" in capsys.readouterr().err
    keep(tmp_path, Product(1, 64, 16, "int8"), 0.99)
    found = chosen_int8_head(HEAD, [1, 2, 4], times(tmp_path), None)
    assert found is not None and found.lanes == {2, 4}


def test_there_is_none_without_room_or_for_other_heads(
    tmp_path: Path, clock: dict[Any, float], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "hybridlm")
    assert chosen_int8_head(HEAD, [1], times(tmp_path), int8_copy_bytes(HEAD) - 1) is None
    assert f"its {int8_copy_bytes(HEAD)} bytes are more than the {int8_copy_bytes(HEAD) - 1} left" in caplog.text
    assert chosen_int8_head(HEAD, [1], times(tmp_path), int8_copy_bytes(HEAD)) is not None
    assert chosen_int8_head(HEAD.at[3, 3].set(jnp.inf), [1], times(tmp_path), None) is None
    assert "not finite" in caplog.text
    for other in (HEAD.astype("float32"), HEAD.astype("float16"), HEAD[:63], HEAD[:, :15]):
        assert chosen_int8_head(other, [1], times(tmp_path), None) is None
    # its own product has not been measured: nothing says that it is slower
    assert chosen_int8_head(HEAD[:32], [1, 2], times(tmp_path), None) is None
    monkeypatch.setattr(int8_head_choice, "MIN_ELEMENTS", HEAD.size + 1)
    assert chosen_int8_head(HEAD, [1], times(tmp_path), None) is None
    monkeypatch.setattr(int8_head_choice, "MIN_ELEMENTS", 1)
    monkeypatch.setattr(int8_head_choice, "packed_u32", lambda head: None)
    assert chosen_int8_head(HEAD, [1], times(tmp_path), None) is None


def test_search_is_measured_by_itself() -> None:
    assert 0 < int8_head_choice._seconds(2, build_int8_head(words(HEAD))) < 10


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[hybridlm.LM, hybridlm.LM]:
    """One checkpoint without an int8 head, and with one for all numbers of lanes but 2; groups of four tokens."""
    directory = write_random_checkpoint("next_base", tmp_path / "checkpoint")
    plain = hybridlm.load(directory, **SETTINGS)
    monkeypatch.setattr(sampling_int8_head, "GROUP_TOKENS", 4)

    def int8_head(head: jax.Array, lanes: set[int], *_: Any) -> ChosenInt8Head:
        assert lanes in ({1, 2, 4}, {2, 4})
        return ChosenInt8Head(build_int8_head(words(head)), frozenset(lanes - {2}))

    monkeypatch.setattr(tuning, "chosen_int8_head", int8_head)
    return plain, hybridlm.load(directory, tune=True, **SETTINGS)


def run_together(lm: hybridlm.LM, prompts: list[list[int]], settings: dict[str, Any]) -> list[list[int]]:
    """Tokens of the first three prompts, of which the second is sampled and has fewer."""
    found: dict[int, list[int]] = {}
    with lm.session() as session:
        for number, prompt in enumerate(prompts[:3]):
            session.submit(prompt, **settings | ({"temperature": 2.0, "max_tokens": 6} if number == 1 else {}))
        while session.busy:
            found |= {event.index: event.completion.token_ids for event in session.step() if event.completion}
    return [found[i] for i in range(3)]


def test_tokens_are_those_of_all_logits(pair: tuple[hybridlm.LM, hybridlm.LM]) -> None:
    plain, screened = pair
    settings: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True}
    prompts = [[5, 9, 3], [7, 7, 8, 1, 2, 3], [4, 8, 2, 6, 1], [60]]
    one, other = ([x.token_ids for x in lm.generate(prompts, **settings)] for lm in pair)
    assert one == other and len({tuple(tokens) for tokens in one}) == 4
    alone = [screened.generate([prompt], **settings)[0].token_ids for prompt in prompts]
    assert alone == other
    # Beside a sampled one, which the first outlives and the second does not.
    with_sampled = [run_together(lm, prompts, settings) for lm in pair]
    assert with_sampled[0] == with_sampled[1] and with_sampled[1][::2] == [one[0], one[2]]
    assert with_sampled[1][1] != one[1][: len(with_sampled[1][1])]
    with_logprobs = [x.token_ids for x in screened.generate(prompts, logprobs=2, **settings)]
    assert with_logprobs == one
    assert plain.engine.parameters_on_a_device == screened.engine.parameters_on_a_device


def test_steps_are_certified_and_only_those_that_sample_tokens_alone_use_the_int8_head(
    pair: tuple[hybridlm.LM, hybridlm.LM],
) -> None:
    _, screened = pair
    screened.generate([[5, 9, 3], [7, 7, 8], [3], [4]], max_tokens=3, ignore_eos=True)
    screened.generate([[5, 9, 3]], max_tokens=3, ignore_eos=True)
    assert screened.certificates and all(one.holds for one in screened.certificates.values())
    engine = screened.engine
    for shape, expected in (
        (Shape("generate", 1, 1), True),
        (Shape("generate", 4, CHUNK), True),
        (Shape("generate", 2, 1), False),
        (Shape("generate", 4, 1, 0), False),
        (Shape("generate", 4, 1, processor=lambda logits, *_: logits), False),
        (Shape("score", 4, CHUNK, 0), False),
    ):
        step, _ = engine.programs.step(shape)
        text = str(jax.make_jaxpr(step)(*engine.example_arguments(shape)))
        assert (" preferred_element_type=int32" in text) == expected, shape


@pytest.mark.long
def test_sanitizer_follows_the_search(pair: tuple[hybridlm.LM, hybridlm.LM]) -> None:
    plain, screened = pair
    sanitized = hybridlm.load(screened.path, sanitize=True, tune=True, **SETTINGS)
    settings: dict[str, Any] = {"max_tokens": 4, "ignore_eos": True}
    prompts = [[5, 9, 3], [7, 7, 8], [4], [6, 1]]
    assert sanitized.engine.programs.int8_head_lanes == {4}
    expected, found = ([one.token_ids for one in lm.generate(prompts, **settings)] for lm in (plain, sanitized))
    assert found == expected


def test_copy_leaves_as_much_as_rows_take_twice(
    pair: tuple[hybridlm.LM, hybridlm.LM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With less memory left, steps are compiled at once, and a model could be refused because of an optional copy."""
    rooms: list[int | None] = []

    def chosen(head: jax.Array, lanes: set[int], store: TimeStore, room: int | None, progress: bool | None) -> None:
        rooms.append(room)

    monkeypatch.setattr(tuning, "chosen_int8_head", chosen)
    engine = pair[1].engine
    rows = (engine.lanes + engine.prefill_rows) * engine.row_bytes_on_a_device
    for left in (None, 10 * rows):
        monkeypatch.setattr(loading, "available_memory", lambda placement, left=left: left)
        hybridlm.load(pair[1].path, tune=True, **SETTINGS)
    assert rooms[0] is None and rooms[1] == pytest.approx(8 * rows, rel=1e-3)


def test_no_lane_reaches_another(pair: tuple[hybridlm.LM, hybridlm.LM]) -> None:
    """Every lane changed in turn, its state to NaN and infinity, and the others compared by bits."""
    _, lm = pair
    engine, shape, rng = lm.engine, Shape("generate", LANES, 1), np.random.default_rng(0)
    step, contract = engine.programs.step(shape)
    compiled = engine.program(shape)
    pools = jax.tree.map(lambda leaf: (0.5 * rng.normal(size=leaf.shape)).astype(leaf.dtype), engine.new_rows(LANES))
    tokens = rng.integers(1, 64, (LANES, 1)).astype(np.int32)
    lengths, positions = np.array([1, 1, 1, 0], np.int32), np.array([0, 2, 129, 5], np.int32)
    sampling, _ = sampling_arrays([None] * LANES)
    sampling = sampling._replace(temperature=np.array([0, 0.7, 0, 0], np.float32))
    args = (engine.params, pools, tokens, lengths, positions, np.int32(2), sampling, np.int32(SAMPLED + BESIDE_GREEDY))

    def run(params: Any, pools: Any, *rest: Any) -> Any:
        return compiled(params, jax.tree.map(jnp.array, pools), *rest)

    def change(path: str, row: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if path.startswith("args[1].layers"):
            return np.where(rng.random(row.shape) < 0.5, np.nan, np.inf).astype(row.dtype)
        if path == "args[3]":
            return np.where(row == 0, 1, 0).astype(row.dtype)
        if row.dtype == np.int32:
            return ((row + rng.integers(1, 63, row.shape)) % 64).astype(row.dtype)
        return row ^ np.uint32(77) if row.dtype == np.uint32 else np.float32(0.4) + row * np.float32(0.2)

    found = influence(run, args, contract.bind(step, args), change)
    assert found.leaks == [] and (0, "args[2]") not in found.inert


def test_host_says_whether_a_greedy_lane_is_beside_sampled_ones() -> None:
    def alive(**params: Any) -> ActiveSequence:
        return ActiveSequence(Request(0, (1,), ResolvedParams(**params)))

    greedy, sampled, filtered = alive(), alive(temperature=1.0), alive(temperature=1.0, top_k=3)
    together: list[tuple[list[ActiveSequence | None], int]] = [
        ([None, greedy], GREEDY),
        ([None, sampled], SAMPLED),
        ([greedy, sampled, None], SAMPLED + BESIDE_GREEDY),
        ([filtered, sampled], FILTERED),
        ([filtered, None, greedy], FILTERED + BESIDE_GREEDY),
    ]
    for lanes, expected in together:
        assert int(sampling_arrays(lanes)[1]) == expected
