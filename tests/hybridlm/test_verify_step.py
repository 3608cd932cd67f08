"""The step that verifies drafts writes what it accepts and nothing else, for every model and every mix of lanes."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from text_checkpoint import write_text_checkpoint
from tiny_variants import OTHER_GOLDENS

import hybridlm
from hybridlm._batch import Batch, Feed, sampling_arrays
from hybridlm._programs import Shape
from hybridlm._steps import CARRIED, Rows
from hybridlm._verify_step import accept

GOLDEN = Path(__file__).parents[1] / "golden"
TOKENS, CONTEXT, CHUNK = 5, 140, 7
LONG = pytest.mark.long
MODELS = [
    "dense",
    *(pytest.param(name, marks=LONG) for name in ("next_old_fields", "sparse_multimodal", *OTHER_GOLDENS)),
]


class Lane:
    """One lane's part of the step: what it has read before, and what it consumes."""

    def __init__(self, past: Sequence[int], certain: Sequence[int], drafts: Sequence[int] = ()):
        self.past, self.certain, self.drafts = tuple(past), tuple(certain), tuple(drafts)

    @cached_property
    def feed(self) -> Feed | None:
        return Feed((*self.certain, *self.drafts), len(self.past)) if self.certain else None


@pytest.fixture(scope="module", params=MODELS)
def lm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> hybridlm.LM:
    if request.param == "dense":
        directory = write_text_checkpoint(tmp_path_factory.mktemp("dense"))
    else:
        directory = GOLDEN / request.param
    return hybridlm.load(directory, lanes=6, context=CONTEXT, dtype="float32", chunk=CHUNK)


class Steps:
    """Steps of a model on rows that may be used again."""

    def __init__(self, lm: hybridlm.LM, lanes: int):
        self.lm, self.lanes = lm, lanes
        self._programs: dict[Shape, Any] = {}

    def run(self, shape: Shape, rows: Rows, feeds: Sequence[Feed | None], *operands: Any) -> Any:
        if shape not in self._programs:
            self._programs[shape] = jax.jit(self.lm._engine.programs.step(shape)[0])
        batch = Batch.of(feeds, shape.tokens)
        return self._programs[shape](
            self.lm._engine.params, rows, *batch, *operands, *sampling_arrays([None] * self.lanes)
        )

    def verify(self, rows: Rows, lanes: Sequence[Lane]) -> tuple[np.ndarray, np.ndarray, Rows]:
        """(accepted, drawn, rows)"""
        drafts = np.array([len(lane.drafts) for lane in lanes], np.int32)
        feeds = [lane.feed for lane in lanes]
        (accepted, drawn), rows = self.run(Shape("verify", self.lanes, TOKENS), rows, feeds, drafts)
        return np.asarray(accepted), np.asarray(drawn.token), rows

    def read(self, rows: Rows, texts: Sequence[Sequence[int]], tokens: int = CHUNK) -> tuple[np.ndarray, Rows]:
        """Consume texts from their beginnings; returns what is drawn behind each token of them, and the rows."""
        drawn = np.full((self.lanes, max(1, *map(len, texts))), -1)
        for start in range(0, drawn.shape[1], tokens):
            parts = [tuple(text[start : start + tokens]) for text in texts]
            feeds = [Feed(part, start) if part else None for part in parts]
            out, rows = self.run(Shape("generate", self.lanes, tokens), rows, feeds)
            for lane, part in enumerate(parts):
                if part:
                    drawn[lane, start + len(part) - 1] = out.token[lane]
        return drawn, rows


@pytest.fixture(scope="module")
def steps(lm: hybridlm.LM) -> Steps:
    return Steps(lm, 6)


@pytest.fixture(scope="module")
def scene(steps: Steps) -> tuple[Rows, list[Lane], list[int]]:
    """Rows, lanes of every kind, and how many of their tokens have to be accepted."""
    vocab = steps.lm.config.vocab_size
    rng = np.random.default_rng(1)
    past = [tuple(map(int, rng.integers(3, vocab, size))) for size in (9, 4, 130, 12, 0, 5)]
    noise = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), steps.lm._engine.new_rows(6)
    )
    _, rows = steps.read(noise, past)
    last = [int(token) for token in rng.integers(3, vocab, 6)]
    right: list[list[int]] = [[] for _ in past]
    for _ in range(TOKENS - 1):
        lanes = [Lane(p, (token, *found)) for p, token, found in zip(past, last, right, strict=True)]
        _, drawn, _ = steps.verify(rows, lanes)
        for lane, found in enumerate(right):
            found.append(int(drawn[lane, len(found)]))

    def wrong(token: int) -> int:
        return (token + 1) % vocab

    prompt = tuple(map(int, rng.integers(3, vocab, TOKENS)))
    lanes = [
        Lane(past[0], (last[0],), right[0]),  # every draft right
        Lane(past[1], (last[1],), (*right[1][:2], wrong(right[1][2]), right[1][3])),  # right again behind a wrong one
        Lane(past[2], (last[2],), (wrong(right[2][0]),)),  # a single draft, wrong, in the second block of the cache
        Lane(past[3], (last[3],)),  # no drafts
        Lane(past[4], prompt),  # begins, and has no drafts either
        Lane(past[5], ()),  # idle
    ]
    return rows, lanes, [TOKENS, 3, 1, 1, TOKENS, 0]


def states(rows: Rows, lane: int, end: int) -> list[np.ndarray]:
    """A lane's rows, of caches what lies before `end`."""
    found = []
    for leaf in jax.tree.leaves(rows.layers):
        row = np.asarray(leaf)[lane]
        found.append(row[:, :end] if row.ndim == 3 and row.shape[1] >= CONTEXT else row)
    return found


def ends(lanes: Sequence[Lane], accepted: Sequence[int]) -> list[int]:
    return [len(lane.past) + count for lane, count in zip(lanes, accepted, strict=True)]


def test_drafts_are_accepted_up_to_the_first_wrong_one(steps: Steps, scene: Any) -> None:
    rows, lanes, expected = scene
    accepted, _, after = steps.verify(rows, lanes)
    assert accepted.tolist() == expected
    for before, new in zip(jax.tree.leaves(rows), jax.tree.leaves(after), strict=True):
        assert np.asarray(new)[5].tobytes() == np.asarray(before)[5].tobytes()  # the idle lane


def test_rows_are_bitwise_those_of_the_accepted_tokens_alone(steps: Steps, scene: Any) -> None:
    """The same program with these tokens and no others: nothing else of the step is in the rows."""
    rows, lanes, expected = scene
    _, drawn, after = steps.verify(rows, lanes)
    alone = [
        Lane(lane.past, (*lane.certain, *lane.drafts)[:count]) for lane, count in zip(lanes, expected, strict=True)
    ]
    accepted, drawn_alone, want = steps.verify(rows, alone)
    assert accepted.tolist() == expected
    for lane, end in enumerate(ends(lanes, expected)):
        assert drawn[lane, : expected[lane]].tolist() == drawn_alone[lane, : expected[lane]].tolist()
        for got, other in zip(states(after, lane, end), states(want, lane, end), strict=True):
            assert got.tobytes() == other.tobytes()
    assert np.asarray(after.token).tobytes() == np.asarray(want.token).tobytes()


def test_rejected_drafts_do_not_matter(steps: Steps, scene: Any) -> None:
    rows, lanes, expected = scene
    _, _, after = steps.verify(rows, lanes)
    vocab = steps.lm.config.vocab_size
    others = list(lanes)
    others[1] = Lane(
        lanes[1].past, lanes[1].certain, (*lanes[1].drafts[:2], *((t + 5) % vocab for t in lanes[1].drafts[2:]))
    )
    others[2] = Lane(lanes[2].past, lanes[2].certain, [(lanes[2].drafts[0] + 3) % vocab] * 4)
    accepted, _, other = steps.verify(rows, others)
    assert accepted.tolist() == expected
    for lane, end in enumerate(ends(lanes, expected)):
        for got, want in zip(states(after, lane, end), states(other, lane, end), strict=True):
            assert got.tobytes() == want.tobytes()


def test_the_same_as_one_token_at_a_time(steps: Steps, scene: Any) -> None:
    """What is drawn, and the state to go on from, against steps that consume the accepted tokens singly."""
    rows, lanes, expected = scene
    _, drawn, after = steps.verify(rows, lanes)
    want = rows
    for place in range(TOKENS):
        feeds = [
            Feed(((*lane.certain, *lane.drafts)[place],), len(lane.past) + place) if place < count else None
            for lane, count in zip(lanes, expected, strict=True)
        ]
        out, want = steps.run(Shape("generate", steps.lanes, 1), want, feeds)
        for lane, count in enumerate(expected):
            if place < count:
                assert drawn[lane, place] == out.token[lane]
    assert np.asarray(after.token).tobytes() == np.asarray(want.token).tobytes()
    for lane, end in enumerate(ends(lanes, expected)):
        for got, other in zip(states(after, lane, end), states(want, lane, end), strict=True):
            np.testing.assert_allclose(got, other, atol=5e-5, rtol=1e-4)


def test_the_token_drawn_last_is_carried(steps: Steps, scene: Any) -> None:
    rows, lanes, expected = scene
    rows = rows._replace(token=jnp.array([[lane.certain[0] if lane.certain else 0] for lane in lanes], jnp.int32))
    carried = [Lane(lane.past, (CARRIED, *lane.certain[1:]), lane.drafts) if lane.certain else lane for lane in lanes]
    first, second = steps.verify(rows, lanes), steps.verify(rows, carried)
    assert second[0].tolist() == expected
    for got, want in zip(jax.tree.leaves(second), jax.tree.leaves(first), strict=True):
        assert np.asarray(got).tobytes() == np.asarray(want).tobytes()


@pytest.mark.parametrize(
    ("length", "drafts", "wrong_at", "expected"),
    [
        (0, 0, None, 0),
        (1, 0, None, 1),
        (5, 0, 2, 5),  # a prompt: nothing is compared
        (5, 4, None, 5),
        (5, 4, 1, 1),
        (5, 4, 4, 4),
        (3, 2, 2, 2),
        (3, 2, 3, 3),  # what stands behind the length is no draft
        (4, 2, 1, 4),  # the wrong token is certain
        (4, 2, 2, 2),
        (4, 2, 3, 3),
    ],
)
def test_accept(length: int, drafts: int, wrong_at: int | None, expected: int) -> None:
    """Every place of the first wrong token, with certain tokens before the drafts."""
    tokens = np.arange(10, 15, dtype=np.int32)[None]
    drawn = tokens + 1
    if wrong_at is not None:
        drawn[0, wrong_at - 1] += 7
    counts = accept(jnp.array(tokens), jnp.array(drawn), jnp.array([length]), jnp.array([drafts]))
    assert counts.tolist() == [expected]
    assert counts.dtype == jnp.int32
