"""Prefixes: a common beginning that is prefilled once and continued many times."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hybridlm.engine.engine import Engine
from hybridlm.engine.snapshot_file import save_snapshot
from hybridlm.errors import NumericalError
from hybridlm.programs.shapes import Shape
from hybridlm.requests.sampling_operands import sampling_inputs
from hybridlm.rows.pool import RowPool
from hybridlm.rows.snapshot import Snapshot, nothing_consumed
from hybridlm.steps.operands import Batch, Feed
from ir_passes.host.slot_owner import Slot


@dataclass(frozen=True, eq=False)
class Prefix:
    """The beginning of prompts or texts, prefilled once; `LM.prefix` makes it.

    Its state is the one before the last token: that token is consumed again with each continuation, because the step
    that consumes it predicts the next one.

    Attributes:
        token_ids: tokens of the prefix, at least one.
        snapshot: the state after all of them but the last.
    """

    token_ids: tuple[int, ...]
    snapshot: Snapshot

    def __len__(self) -> int:
        return len(self.token_ids)

    def __repr__(self) -> str:
        return f"Prefix({len(self)} tokens, {self.nbytes / 1e6:.1f} MB)"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a safetensors file for `LM.load_prefix`: its tokens, its label, and the state.

        Keys and values are written for its own positions only.

        Raises:
            OSError, ValueError: the file cannot be written; an older one is unchanged.
        """
        save_snapshot(Path(path), self.token_ids, self.snapshot)

    @property
    def nbytes(self) -> int:
        """Bytes of its state on the device, freed with the prefix."""
        return self.snapshot.nbytes


def compute_prefix(engine: Engine, tokens: tuple[int, ...]) -> Prefix:
    """Prefill all tokens except the last in a separate row, a chunk per step.

    Raises:
        NumericalError: the logits after them are not numbers.
        IsolationError, AuditError, HloError: the step is refused.
    """
    with engine.decisions.command("prefix", tokens=tokens):
        snapshot = _compute(engine, tokens[:-1])
        engine.decisions.share(snapshot)
    return Prefix(tokens, snapshot)


def _compute(engine: Engine, consumed: tuple[int, ...]) -> Snapshot:
    if not consumed:
        return nothing_consumed(engine.kind)
    pool = engine.borrow(engine.rows, cached=True)
    try:
        engine.make_room(pool, len(consumed))
        slot = pool.acquire(len(consumed))
        token, lane, snapshot = _prefill(engine, pool, slot, consumed)
        pool.release(slot)
    finally:
        engine.give_back(pool)
    if engine.runner.read(token)[lane] >= engine.vocab_size:
        raise NumericalError("prefix", len(consumed))
    return snapshot


def _prefill(engine: Engine, pool: RowPool, slot: Slot, consumed: tuple[int, ...]) -> tuple[Any, int, Snapshot]:
    """Return the tokens sampled by the last step, the lane of the prefix, and its state."""
    (lane,), lane_map = pool.arrange([slot], engine.bucket(1, engine.lanes))
    owners = [slot if other == lane else None for other in range(len(lane_map.rows))]
    token: Any = np.zeros(0)
    for start in range(0, len(consumed), engine.chunk):
        engine.decisions.checkpoint()
        part = Feed(consumed[start : start + engine.chunk], start)
        feeds = [None if owner is None else part for owner in owners]
        batch = Batch.of(feeds, engine.chunk, lane_map.slots, lane_map.pages)
        inputs, counts = sampling_inputs(batch, [None] * len(owners), engine.vocab_size), np.asarray(batch.lengths)
        shape = Shape.of(inputs, pool.size, pool.pages)
        token = engine.run(shape, pool, lane_map.rows, inputs, owners=owners, counts=counts).token
        engine.stats["prompt_tokens"] += len(part.tokens)
    snapshot = engine.moves.take(pool, slot, consumed, owner=slot)
    engine.runner.forget(slot)
    return token, lane, snapshot
