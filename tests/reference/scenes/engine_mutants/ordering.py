"""Tokens return a step after sampling, but are read by current lanes."""

from typing import Any

import jax
import numpy as np
import pytest
from engine_mutants.mutant import EngineMutant, Finder

from hybridlm import Session
from hybridlm.engine.decoding import DispatchedStep
from hybridlm.engine.engine import Engine
from hybridlm.rows.pool import RowPool


def taken(patch: pytest.MonkeyPatch, change) -> None:
    """Change a read step: `change(session, dispatched, sampled) -> (dispatched, sampled)`."""
    right = Session._take

    def take(self: Session, dispatched: DispatchedStep, sampled: Any, accepted: Any) -> None:
        dispatched, sampled = change(self, dispatched, sampled)
        right(self, dispatched, sampled, accepted)

    patch.setattr(Session, "_take", take)


def lanes_of_now(patch: pytest.MonkeyPatch) -> None:
    def change(session: Session, dispatched: DispatchedStep, sampled: Any) -> tuple[DispatchedStep, Any]:
        scheduler = session._scheduler
        pool, count = scheduler._pool, len(sampled.token)
        if pool is None or count != scheduler._decode_lanes or len(scheduler.decoding) > count:
            return dispatched, sampled
        if any(sequence.prefilling for sequence, _ in dispatched.sequences):
            return dispatched, sampled
        now, _ = scheduler._by_lane(pool, scheduler.decoding, count)
        sequences = [sequence for sequence, _ in dispatched.sequences]
        return dispatched._replace(
            sequences=[(sequence, lane) for lane, sequence in enumerate(now) if sequence and sequence in sequences]
        ), sampled

    taken(patch, change)


def lanes_close_ranks(patch: pytest.MonkeyPatch) -> None:
    def change(session: Session, dispatched: DispatchedStep, sampled: Any) -> tuple[DispatchedStep, Any]:
        alive = [sequence for sequence, _ in dispatched.sequences if sequence.finish_reason is None]
        lanes = [lane for _, lane in dispatched.sequences]
        return dispatched._replace(sequences=list(zip(alive, lanes, strict=False))), sampled

    taken(patch, change)


def last_lane_for_all(patch: pytest.MonkeyPatch) -> None:
    def change(session: Session, dispatched: DispatchedStep, sampled: Any) -> tuple[DispatchedStep, Any]:
        return dispatched._replace(
            sequences=[(sequence, len(sampled.token) - 1) for sequence, _ in dispatched.sequences]
        ), sampled

    taken(patch, change)


def tokens_of_the_step_after(patch: pytest.MonkeyPatch) -> None:
    def change(session: Session, dispatched: DispatchedStep, sampled: Any) -> tuple[DispatchedStep, Any]:
        newest = session._in_flight[0].sampled if session._in_flight else None
        return dispatched, sampled if newest is None or len(newest.token) != len(sampled.token) else jax.device_get(
            newest
        )

    taken(patch, change)


def one_array_for_all_steps(patch: pytest.MonkeyPatch) -> None:
    positions_by_lanes: dict[int, np.ndarray] = {}
    right = Engine.run

    def run(self: Engine, shape: Any, pool: RowPool, rows: Any, inputs: Any, **about: Any) -> Any:
        positions = positions_by_lanes.setdefault(shape.lanes, np.zeros(shape.lanes, np.int32))
        positions[:] = inputs.batch.positions
        inputs = inputs._replace(batch=inputs.batch._replace(positions=positions))
        return right(self, shape, pool, rows, inputs, **about)

    patch.setattr(Engine, "run", run)


MUTANTS = (
    EngineMutant("lanes-of-now", "vLLM#53919", "tokens go to whoever is in their lane when they come back",
                 Finder.ALONE, lanes_of_now),
    EngineMutant("lanes-close-ranks", "mlx-vlm#1889", "who has left since is taken out of the list, the lanes are not",
                 Finder.ALONE, lanes_close_ranks),
    EngineMutant("last-lane-for-all", "Atlas#101", "everybody gets the last lane's token", Finder.ALONE,
                 last_lane_for_all),
    EngineMutant("tokens-of-the-step-after", "SGLang#24221", "the host reads one step ahead of what it takes it for",
                 Finder.ALONE, tokens_of_the_step_after),
    EngineMutant("one-array-for-all-steps", "sglang-jax#1503",
                 "positions are written into the array that a running step reads", Finder.ARRAYS,
                 one_array_for_all_steps),
)  # fmt: skip
