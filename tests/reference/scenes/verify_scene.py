"""Lanes of every kind in a verifying step, expected results, and single-token steps."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from paged_caches import by_lane, of_lanes
from paged_shapes import paged

import hybridlm
from hybridlm.programs.shapes import Shape
from hybridlm.requests.sequence import ActiveSequence, Request, ResolvedParams, logit_changes, sampling_arrays
from hybridlm.steps.operands import Batch, Feed, StepInputs
from hybridlm.steps.structure import Rows
from models.state.pages import own_page_count, own_pages

LANES, TOKENS, CONTEXT, CHUNK = 6, 5, 140, 7
SIZES: dict[str, Any] = {"lanes": LANES, "context": CONTEXT, "dtype": "float32", "chunk": CHUNK}
"""Settings of models for these scenes."""


def own_table(lanes: int, context: int) -> np.ndarray:
    """The table of consecutive pages for each lane, after the null page."""
    return np.asarray(own_pages(lanes, own_page_count(lanes, context)))


def step_inputs(
    batch: Batch, owners: Sequence[ActiveSequence | None], vocab_size: int, drafts: Sequence[Sequence[int]] | None
) -> StepInputs:
    """Return the inputs of a step that samples each lane's next token, or verifies `drafts`."""
    counts = None if drafts is None else np.array([len(draft) for draft in drafts], np.int32)
    changes = logit_changes(owners, vocab_size, drafts, 1 if drafts is None else batch.tokens.shape[1])
    return StepInputs(batch, counts, *sampling_arrays(owners), changes)


def moved(leaf: jax.Array, lanes: int, order: np.ndarray) -> jax.Array:
    """Permute rows, or pages after the null page, by lane."""
    return jnp.asarray(of_lanes(leaf, lanes, lambda rows: rows[order]))


class Lane:
    """A lane's part of the step: earlier tokens, consumed tokens, and sampling.

    Args:
        past: tokens before the step.
        certain: tokens of the step that are no drafts; none for an idle lane.
        drafts: tokens after them.
        sampled: index of a request that draws with temperature 1; None for one that takes the most likely tokens.
    """

    def __init__(
        self, history: Sequence[int], certain: Sequence[int], drafts: Sequence[int] = (), sampled: int | None = None
    ):
        self.past, self.certain, self.drafts, self.sampled = tuple(history), tuple(certain), tuple(drafts), sampled

    def but(self, certain: Sequence[int] | None = None, drafts: Sequence[int] | None = None) -> "Lane":
        """The same with other tokens in the step."""
        return Lane(
            self.past,
            self.certain if certain is None else certain,
            self.drafts if drafts is None else drafts,
            self.sampled,
        )

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens that it consumes."""
        return (*self.certain, *self.drafts)

    @property
    def feed(self) -> Feed | None:
        return Feed(self.tokens, len(self.past)) if self.certain else None

    @cached_property
    def owner(self) -> ActiveSequence | None:
        params = ResolvedParams(temperature=1.0)
        return None if self.sampled is None else ActiveSequence(Request(self.sampled, (1,), params))


class Scene(NamedTuple):
    """A step that is to be run.

    Attributes:
        rows: before it.
        lanes: what each lane consumes.
        accepted: how many of each lane's tokens have to be accepted.
    """

    rows: Rows
    lanes: list[Lane]
    accepted: list[int]

    @property
    def inputs(self) -> StepInputs:
        """Inputs of the step that verifies, on the pages of `own_table`."""
        feeds, owners = [lane.feed for lane in self.lanes], [lane.owner for lane in self.lanes]
        batch = Batch.of(feeds, TOKENS, range(len(self.lanes)), own_table(len(self.lanes), CONTEXT))
        return step_inputs(batch, owners, 0, [lane.drafts for lane in self.lanes])

    @property
    def ends(self) -> list[int]:
        """Tokens of each lane after the step."""
        return [len(lane.past) + count for lane, count in zip(self.lanes, self.accepted, strict=True)]

    def in_order(self, order: Sequence[int]) -> "Scene":
        """The same with the lanes in another order."""
        rows = jax.tree.map(lambda leaf: moved(leaf, len(self.lanes), np.array(order)), self.rows)
        return Scene(rows, [self.lanes[i] for i in order], [self.accepted[i] for i in order])


class Steps:
    """Steps of a model on rows that may be used again."""

    def __init__(self, lm: hybridlm.LM, tokens: int = TOKENS, lanes: int = LANES):
        self.lm, self.tokens, self.lanes = lm, tokens, lanes
        self._programs: dict[Shape, Any] = {}

    def run(
        self,
        shape: Shape,
        rows: Rows,
        feeds: Sequence[Feed | None],
        owners: Sequence[Any],
        drafts: Sequence[Sequence[int]] | None = None,
    ) -> tuple[Any, Rows]:
        shape = paged(self.lm.engine, shape)
        if shape not in self._programs:
            self._programs[shape] = jax.jit(self.lm.engine.programs.step(shape)[0])
        table = own_table(shape.lanes, self.lm.context) if shape.pages else None
        batch = Batch.of(feeds, shape.tokens, range(shape.lanes), table)
        inputs = step_inputs(batch, owners, self.lm.engine.vocab_size, drafts)
        return self._programs[shape](self.lm.engine.params, rows, inputs)

    def verify(self, rows: Rows, lanes: Sequence[Lane]) -> tuple[np.ndarray, np.ndarray, Rows]:
        """(accepted, sampled, rows)"""
        drafts = [lane.drafts for lane in lanes]
        feeds, owners = [lane.feed for lane in lanes], [lane.owner for lane in lanes]
        (accepted, sampled), rows = self.run(
            Shape("verify", self.lanes, self.tokens, self.lanes), rows, feeds, owners, drafts
        )
        return np.asarray(accepted), np.asarray(sampled.token), rows

    def read(self, rows: Rows, texts: Sequence[Sequence[int]]) -> Rows:
        """The rows after texts, from their beginnings."""
        for start in range(0, max(map(len, texts)), CHUNK):
            parts = [tuple(text[start : start + CHUNK]) for text in texts]
            feeds = [Feed(part, start) if part else None for part in parts]
            _, rows = self.run(Shape("generate", self.lanes, CHUNK, self.lanes), rows, feeds, [None] * self.lanes)
        return rows

    def one_by_one(self, scene: Scene) -> tuple[np.ndarray, Rows]:
        """Return samples after accepted tokens, and rows after consuming these tokens singly."""
        rows, sampled = scene.rows, np.full((self.lanes, self.tokens), -1)
        owners = [lane.owner for lane in scene.lanes]
        for place in range(self.tokens):
            feeds = [
                Feed((lane.tokens[place],), len(lane.past) + place) if place < count else None
                for lane, count in zip(scene.lanes, scene.accepted, strict=True)
            ]
            if any(feeds):
                out, rows = self.run(Shape("generate", self.lanes, 1, self.lanes), rows, feeds, owners)
                sampled[:, place] = np.where([feed is not None for feed in feeds], out.token, -1)
        return sampled, rows

    def used_rows(self, texts: Sequence[Sequence[int]], rng: np.random.Generator) -> Rows:
        """Rows after texts, in a pool that others have used before."""
        noise = jax.tree.map(
            lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), self.lm.engine.new_rows(self.lanes)
        )
        return self.read(noise, texts)

    def right_drafts(self, rows: Rows, lanes: Sequence[Lane], count: int) -> list[list[int]]:
        """Tokens that each lane samples next, so many times, after its certain tokens."""
        drafts: list[list[int]] = [[] for _ in lanes]
        for _ in range(count):
            longer = [lane.but(certain=(*lane.certain, *tokens)) for lane, tokens in zip(lanes, drafts, strict=True)]
            sampled = self.verify(rows, longer)[1]
            for lane, tokens in enumerate(drafts):
                tokens.append(int(sampled[lane, len(longer[lane].certain) - 1]))
        return drafts


def wrong(token: int, vocab: int) -> int:
    """Another token."""
    return (token + 1) % vocab


def scene_of(steps: Steps) -> Scene:
    """Return a scene with drafts, no drafts, a prompt and an idle lane; two sample."""
    vocab = steps.lm.config.vocab_size
    rng = np.random.default_rng(1)
    histories = [tuple(map(int, rng.integers(3, vocab, size))) for size in (9, 4, 130, 12, 0, 5)]
    rows = steps.used_rows(histories, rng)
    last = [int(token) for token in rng.integers(3, vocab, 6)]
    begun = [
        Lane(p, (token,), sampled=k if k in (1, 3) else None)
        for k, (p, token) in enumerate(zip(histories, last, strict=True))
    ]
    right = steps.right_drafts(rows, begun, TOKENS - 1)
    prompt = tuple(map(int, rng.integers(3, vocab, TOKENS)))
    until_wrong = (*right[1][:2], wrong(right[1][2], vocab))
    correct = steps.right_drafts(rows, [lane.but(certain=(*lane.certain, *until_wrong)) for lane in begun], 1)
    lanes = [
        begun[0].but(drafts=right[0]),  # every draft right
        begun[1].but(drafts=(*until_wrong, *correct[1])),  # a token sampled after a wrong draft is also a wrong draft
        begun[2].but(drafts=(wrong(right[2][0], vocab),)),  # one draft, wrong, in the second block of the cache
        begun[3],  # no drafts
        begun[4].but(certain=prompt),  # begins with as many tokens as the step has, and without drafts
        begun[5].but(certain=()),  # idle
    ]
    return Scene(rows, lanes, [TOKENS, 3, 1, 1, TOKENS, 0])


def states(rows: Rows, lane: int, end: int) -> list[np.ndarray]:
    """Return a lane's rows, with caches before `end`."""
    arrays = []
    for leaf in jax.tree.leaves(rows.layers):
        row = by_lane(leaf, len(rows.token))[lane]
        arrays.append(row[:, :end] if row.ndim == 3 and row.shape[1] >= CONTEXT else row)
    return arrays


def prompts_of(steps: Steps) -> Scene:
    """Prompts of unaligned lengths, one with drafts, among drafting and idle lanes."""
    vocab = steps.lm.config.vocab_size
    rng = np.random.default_rng(2)
    histories = [tuple(map(int, rng.integers(3, vocab, size))) for size in (3, 0, 8, 14, 0, 126)]
    certain = [tuple(map(int, rng.integers(3, vocab, size))) for size in (2, 3, 1, 1, 1, 4)]
    rows = steps.used_rows(histories, rng)
    begun = [Lane(p, tokens) for p, tokens in zip(histories, certain, strict=True)]
    right = steps.right_drafts(rows, begun[:5] + [begun[5].but(certain=())], 3)
    lanes = [
        begun[0].but(drafts=(*right[0][:2], wrong(right[0][2], vocab))),  # goes on, and drafts after its end
        begun[1],  # begins
        begun[2].but(drafts=right[2][:3]),
        begun[3].but(certain=()),
        begun[4],  # a prompt of one token
        begun[5],  # goes on across a block of the cache
    ]
    return Scene(rows, lanes, [4, 3, 4, 0, 1, 4])
