"""The verifying step writes accepted tokens only, for every model and mix of lanes."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paged_caches import by_lane, of_lanes
from tiny_variants import OTHER_GOLDENS
from verify_scene import SIZES, Lane, Scene, Steps, prompts_of, scene_of, states, wrong

import hybridlm
from hybridlm.steps.generate import LAST_SAMPLED
from hybridlm.steps.verify import accept

GOLDEN = Path(__file__).parents[2] / "golden"
LONG = pytest.mark.long
MODELS = [
    "dense",
    *(pytest.param(name, marks=LONG) for name in ("next_old_fields", "sparse_multimodal", *OTHER_GOLDENS)),
]


@pytest.fixture(scope="module", params=MODELS)
def lm(request: pytest.FixtureRequest, text_path: Path) -> hybridlm.LM:
    directory = text_path if request.param == "dense" else GOLDEN / request.param
    return hybridlm.load(directory, **SIZES)


@pytest.fixture(scope="module")
def steps(lm: hybridlm.LM) -> Steps:
    return Steps(lm)


@pytest.fixture(scope="module", params=[scene_of, prompts_of])
def scene(request: pytest.FixtureRequest, steps: Steps) -> Scene:
    return request.param(steps)


def check_same(got: jax.Array | np.ndarray, want: jax.Array | np.ndarray) -> None:
    assert np.asarray(got).tobytes() == np.asarray(want).tobytes()


def test_drafts_are_accepted_up_to_the_first_wrong_one(steps: Steps, scene: Scene) -> None:
    accepted, _, rows = steps.verify(scene.rows, scene.lanes)
    assert accepted.tolist() == scene.accepted
    idle = scene.accepted.index(0)
    for old, new in zip(jax.tree.leaves(scene.rows), jax.tree.leaves(rows), strict=True):
        check_same(by_lane(new, steps.lanes)[idle], by_lane(old, steps.lanes)[idle])


def test_rows_bitwise_match_the_accepted_tokens_alone(steps: Steps, scene: Scene) -> None:
    """Run the same program with these tokens and no others."""
    rows, lanes, expected = scene
    _, sampled, rows_now = steps.verify(rows, lanes)
    single_drafts = [lane.but(lane.tokens[:count], ()) for lane, count in zip(lanes, expected, strict=True)]
    accepted, drawn_alone, want = steps.verify(rows, single_drafts)
    assert accepted.tolist() == expected
    for lane, end in enumerate(scene.ends):
        assert sampled[lane, : expected[lane]].tolist() == drawn_alone[lane, : expected[lane]].tolist()
        for got, other in zip(states(rows_now, lane, end), states(want, lane, end), strict=True):
            assert got.tobytes() == other.tobytes()
    check_same(rows_now.token, want.token)


def test_the_same_as_one_token_at_a_time(steps: Steps, scene: Scene) -> None:
    """Sampled tokens and the final state, against steps that consume the accepted tokens singly."""
    _, sampled, rows = steps.verify(scene.rows, scene.lanes)
    drawn_singly, want = steps.one_by_one(scene)
    for lane, (count, end) in enumerate(zip(scene.accepted, scene.ends, strict=True)):
        assert sampled[lane, :count].tolist() == drawn_singly[lane, :count].tolist()
        for got, other in zip(states(rows, lane, end), states(want, lane, end), strict=True):
            np.testing.assert_allclose(got, other, atol=5e-5, rtol=1e-4)
    check_same(rows.token, want.token)


def test_the_token_sampled_last_is_carried(steps: Steps, scene: Scene) -> None:
    rows, lanes, expected = scene
    rows = rows._replace(token=jnp.array([[lane.certain[0] if lane.certain else 0] for lane in lanes], jnp.int32))
    carried = [lane.but((LAST_SAMPLED, *lane.certain[1:])) if lane.certain else lane for lane in lanes]
    first, second = steps.verify(rows, lanes), steps.verify(rows, carried)
    assert second[0].tolist() == expected
    jax.tree.map(check_same, second, first)


def test_the_order_of_lanes_does_not_matter(steps: Steps, scene: Scene) -> None:
    """Prompts before or after drafting lanes, in moved rows, give the same bits."""
    order = [3, 5, 0, 4, 2, 1]
    want = steps.verify(scene.rows, scene.lanes)
    permuted = steps.verify(scene.in_order(order).rows, scene.in_order(order).lanes)
    jax.tree.map(
        lambda got, other: check_same(by_lane(got, steps.lanes), by_lane(other, steps.lanes)[np.array(order)]),
        permuted, want,
    )  # fmt: skip


@pytest.mark.parametrize("neighbours", ["nan", "drafts"])
def test_a_lane_does_not_depend_on_its_batch_mates(steps: Steps, scene: Scene, neighbours: str) -> None:
    """Accepted tokens, samples and rows stay next to NaN, other tokens, drafts and settings."""
    want = steps.verify(scene.rows, scene.lanes)
    for lane in range(steps.lanes):
        rows, lanes = scene.rows, scene.lanes
        if neighbours == "nan":
            mask = np.arange(steps.lanes) != lane

            def poisoned(x: np.ndarray, mask: np.ndarray = mask) -> np.ndarray:
                wrong = x.dtype.type(7 if x.dtype.kind in "iu" else np.nan)  # windows of tokens are integers
                return np.where(mask.reshape((-1,) + (1,) * (x.ndim - 1)), wrong, x)

            filled = jax.tree.map(lambda x: of_lanes(x, steps.lanes, poisoned), rows.layers)
            rows = rows._replace(layers=filled)
        else:
            other = Lane((), [7, 8, 9], [1, 2], sampled=6)
            lanes = [lane_now if i == lane else other for i, lane_now in enumerate(lanes)]
        result = steps.verify(rows, lanes)
        jax.tree.map(
            lambda got, expected, i=lane: check_same(by_lane(got, steps.lanes)[i], by_lane(expected, steps.lanes)[i]),
            result, want,
        )  # fmt: skip


def check_turns(steps: Steps, *turns: list[int | None]) -> None:
    """Compare successive steps that carry tokens with single tokens from the beginning.

    Args:
        turns: for each step, how many of each lane's four drafts are right; None for no drafts. A step without any is
            the one that samples.
    """
    vocab, rng = steps.lm.config.vocab_size, np.random.default_rng(3)
    histories = [tuple(map(int, rng.integers(3, vocab, size))) for size in (6, 11, 3, 126, 8, 2)]
    rows = want = steps.used_rows(histories, rng)
    lanes = [Lane(text, (int(rng.integers(3, vocab)),)) for text in histories]
    for turn in turns:
        right = steps.right_drafts(rows, lanes, 4)
        lanes = [
            lane
            if count is None
            else lane.but(drafts=[*continuation[:count], *(wrong(token, vocab) for token in continuation[count:])])
            for lane, continuation, count in zip(lanes, right, turn, strict=True)
        ]
        counts = [1 + (count or 0) for count in turn]
        _, want = steps.one_by_one(Scene(want, lanes, counts))
        if any(count is not None for count in turn):
            accepted, _, rows = steps.verify(rows, lanes)
            assert accepted.tolist() == counts
        else:
            _, rows = steps.one_by_one(Scene(rows, lanes, counts))
        check_same(rows.token, want.token)
        for lane, (lane_now, count) in enumerate(zip(lanes, counts, strict=True)):
            end = len(lane_now.past) + count
            for got, other in zip(states(rows, lane, end), states(want, lane, end), strict=True):
                np.testing.assert_allclose(got, other, atol=5e-5, rtol=1e-4)
        lanes = [
            Lane((*item.past, *item.tokens[:count]), (LAST_SAMPLED,)) for item, count in zip(lanes, counts, strict=True)
        ]


def test_three_of_four_accepted_and_then_a_step_without_drafts(steps: Steps) -> None:
    check_turns(steps, [3] * 6, [None] * 6, [3] * 6)


def test_drafts_next_to_lanes_without_drafts(steps: Steps) -> None:
    """Each lane changes sides; then all drafts right in one lane, all wrong in another."""
    check_turns(steps, [3, None, 4, None, 2, None], [None, 3, None, 4, None, 0], [4, 0, None, None, 1, 2])


@pytest.mark.parametrize(("length", "drafts", "wrong_at", "expected"), [
    (0, 0, None, 0),
    (1, 0, None, 1),
    (5, 0, 2, 5),  # a prompt: nothing is compared
    (5, 4, None, 5),
    (5, 4, 1, 1),
    (5, 4, 4, 4),
    (3, 2, 2, 2),
    (3, 2, 3, 3),  # what stands after the length is no draft
    (4, 2, 1, 4),  # the wrong token is certain
    (4, 2, 2, 2),
    (4, 2, 3, 3),
])  # fmt: skip
def test_accept(length: int, drafts: int, wrong_at: int | None, expected: int) -> None:
    """Every place of the first wrong token, with certain tokens before the drafts."""
    tokens = np.arange(10, 15, dtype=np.int32)[None]
    sampled = tokens + 1
    if wrong_at is not None:
        sampled[0, wrong_at - 1] += 7
    counts = accept(jnp.array(tokens), jnp.array(sampled), jnp.array([length]), jnp.array([drafts]))
    assert counts.tolist() == [expected]
    assert counts.dtype == jnp.int32
