"""A model of tokens alone on the host: rows and pages hold the tokens that a sequence has consumed.

It runs under the real engine in place of compiled steps. A step checks that each lane's row has consumed exactly the
tokens before its position, and that the lane's pages hold them all. So a fault of rows, pages, moves or positions is an
error at the step that meets it, and thousands of schedules run in a minute.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hybridlm.engine.engine import Engine
from hybridlm.programs.runner import Examples, Move, PoolStep, Runner
from hybridlm.rows.cached_buffers import CachedBuffers
from hybridlm.rows.pool import PoolPart, RowPool
from hybridlm.steps.generate import LAST_SAMPLED, SampledTokens
from hybridlm.steps.score import Scored
from hybridlm.steps.structure import Rows
from models import KV_BLOCK

EMPTY = -7


def digest(tokens: Sequence[int]) -> int:
    """Return a number that depends on every token and its place."""
    number = 1
    for token in tokens:
        number = (number * 31 + token + 7) % 1_000_003
    return number


def following(tokens: Sequence[int]) -> int:
    """Return the token that the model samples after these."""
    return 3 + digest(tokens) % 60


def logprob(tokens: Sequence[int], target: int) -> float:
    """Return the log-probability of a token after these."""
    return -float(np.float32(digest([*tokens, target]) % 1000 / 100))


def continued(prompt: Sequence[int], limit: int, stops: Sequence[int]) -> list[int]:
    """Return the completion of a prompt: at most `limit` tokens, up to a stop."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + limit:
        tokens.append(following(tokens))
        if tokens[-1] in stops:
            break
    return tokens[len(prompt) :]


class PoolContents:
    """The tokens in the rows and pages of a pool, and the token that each row sampled last."""

    def __init__(self, pool: RowPool):
        self.rows: list[list[int]] = [[EMPTY]] * pool.size
        self.last = [EMPTY] * pool.size
        self.pages = np.full((max(pool.pages, 1), KV_BLOCK), EMPTY)


class HostModel(Runner):
    """Runs steps on tokens.

    Args:
        engine: an engine without requests; it runs this model from now on.
    """

    compiles_ahead = False

    def __init__(self, engine: Engine):
        super().__init__(engine.programs, engine.placement)
        self._pools: weakref.WeakKeyDictionary[RowPool, PoolContents] = weakref.WeakKeyDictionary()
        self._kept: list[Any] = []
        engine.runner, engine._pool = self, None
        engine.__dict__.pop("moves", None)
        engine.clear_prefix_cache()

    def start_timing(self, shape: Any, examples: Examples) -> bool:
        """Measure nothing."""
        return False

    def _contents(self, pool: RowPool) -> PoolContents:
        if pool not in self._pools:
            self._pools[pool] = PoolContents(pool)
        return self._pools[pool]

    def run(self, step: PoolStep, examples: Examples) -> tuple[Any, Rows]:
        """Run a step; raise AssertionError for a lane whose row or pages hold other tokens than its sequence."""
        batch, pool = step.inputs.batch, step.pool
        contents, lanes, width = self._contents(pool), len(batch.lengths), batch.tokens.shape[1]
        each, parts, page_part = lanes // pool.devices, pool.size // pool.devices, pool.pages // pool.devices
        sampled, accepted = np.zeros((lanes, width), np.int32), np.zeros(lanes, np.int32)
        scores = np.zeros((lanes, width), np.float32)
        for lane in np.flatnonzero(np.asarray(batch.lengths)).tolist():
            device, position, length = lane // each, int(batch.positions[lane]), int(batch.lengths[lane])
            row = device * parts + int(batch.slots[lane])
            tokens = list(contents.rows[row]) if position else []
            assert len(tokens) == position, (
                f"row {row} has consumed {len(tokens)} tokens, the lane begins at {position}"
            )
            given = [int(token) for token in batch.tokens[lane, :length]]
            given[0] = contents.last[row] if given[0] == LAST_SAMPLED else given[0]
            accepted[lane] = length
            for i, token in enumerate(given):
                tokens.append(token)
                if batch.pages is not None:
                    page = int(batch.pages[lane, (position + i) // KV_BLOCK])
                    assert page, f"no page for position {position + i} of row {row}"
                    contents.pages[device * page_part + page, (position + i) % KV_BLOCK] = token
                sampled[lane, i] = following(tokens)
                if step.inputs.targets is not None:
                    scores[lane, i] = logprob(tokens, int(step.inputs.targets[lane, i]))
                if step.shape.step == "verify" and accepted[lane] == length and i + 1 < length:
                    accepted[lane] = i + 1 if given[i + 1] != sampled[lane, i] else length
            count = int(accepted[lane])
            tokens = tokens[: position + count]
            if batch.pages is not None:
                pages = device * page_part + np.asarray(batch.pages[lane])
                held = contents.pages[pages].ravel()[: len(tokens)]
                assert held.tolist() == tokens, (
                    f"the pages of row {row} hold other tokens before position {len(tokens)}"
                )
            contents.rows[row], contents.last[row] = tokens, int(sampled[lane, count - 1])
            sampled[lane, 0] = sampled[lane, count - 1] if step.shape.step == "generate" else sampled[lane, 0]
        rows = pool.take()
        if step.shape.step == "score":
            numbers: Any = scores
            return Scored(numbers, numbers > 0, None, None), rows
        token: Any = sampled if step.shape.step == "verify" else sampled[:, 0]
        outputs = SampledTokens(token, None, None, None)
        return ((accepted, outputs) if step.shape.step == "verify" else outputs), rows

    def move(self, step: Move, examples: Examples) -> None:
        """Copy the tokens of a row or page; cached arrays hold the number of the copy."""
        read, write = (int(numbers[0]) for numbers in step.maps[:2])
        if isinstance(step.source, PoolPart) and isinstance(step.target, CachedBuffers):
            contents = self._contents(step.source.pool)
            if step.shape.part == "state":
                self._kept.append((list(contents.rows[read]), contents.last[read]))
            else:
                self._kept.append(contents.pages[read].copy())
            places = tuple(array.sharding for array in step.target.take() if isinstance(array, jax.Array))
            numbers = tuple(
                np.full(array.shape, len(self._kept) - 1, np.float32).astype(array.dtype)
                for array in step.target.take()
            )
            step.target.put(jax.device_put(numbers, places))
            return
        assert isinstance(step.target, PoolPart) and isinstance(step.source, CachedBuffers)
        contents, array = self._contents(step.target.pool), np.asarray(step.source.look()[0])
        copy = self._kept[int(array.ravel()[0])]
        if step.shape.part == "state":
            contents.rows[write], contents.last[write] = copy
        else:
            count = int(step.maps[2][0])
            contents.pages[write, :count] = copy[:count]
