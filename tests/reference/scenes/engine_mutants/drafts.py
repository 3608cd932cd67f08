"""Faults of the host around a step that verifies drafts: positions, counts and rows."""

from collections.abc import Sequence as Many
from typing import Any

import numpy as np
import pytest
from engine_mutants.mutant import EngineMutant, Finder, replaced
from engine_mutants.traffic import REQUESTS, Alone
from random_traffic import Known

from hybridlm import Session
from hybridlm.engine.decoding import Decoding, DispatchedStep
from hybridlm.engine.engine import Engine
from hybridlm.engine.speculation import Speculation
from hybridlm.rows.pool import RowPool
from hybridlm.steps.operands import StepInputs


def partly_right(completions: Many[Alone]) -> Known:
    """Drafter with the traffic's solo completions: proposes no, some, all, or partly wrong tokens."""
    texts = zip(REQUESTS, completions, strict=True)
    return Known([[*request.prompt, *completion.token_ids] for request, completion in texts], (4, 7, 4, 6, 4, 9, 2))


def settled(patch: pytest.MonkeyPatch, change: Any) -> None:
    """Other counts of accepted tokens for the bookkeeping: `change(decoding, dispatched, accepted) -> accepted`."""
    right = Decoding.settle

    def settle(self: Decoding, pool: RowPool, dispatched: DispatchedStep, accepted: np.ndarray) -> None:
        right(self, pool, dispatched, change(self, dispatched, accepted))

    patch.setattr(Decoding, "settle", settle)


def taken(patch: pytest.MonkeyPatch, change: Any) -> None:
    """Other counts of accepted tokens for all of the host: `change(session, dispatched, accepted) -> accepted`."""
    right = Session._take

    def take(self: Session, dispatched: DispatchedStep, sampled: Any, accepted: np.ndarray | None) -> None:
        right(self, dispatched, sampled, None if accepted is None else change(self, dispatched, accepted))

    patch.setattr(Session, "_take", take)


def drafts_told(patch: pytest.MonkeyPatch, change: Any) -> None:
    """Change the step's numbers of drafts: `change(drafts) -> drafts`."""
    right = Engine.run

    def run(self: Engine, shape: Any, pool: RowPool, rows: Any, inputs: StepInputs, **about: Any) -> Any:
        if inputs.drafts is not None:
            inputs = inputs._replace(drafts=change(inputs.drafts))
        return right(self, shape, pool, rows, inputs, **about)

    patch.setattr(Engine, "run", run)


def moved_by_all_drafts(patch: pytest.MonkeyPatch) -> None:
    def change(decoding: Decoding, dispatched: DispatchedStep, accepted: np.ndarray) -> np.ndarray:
        return np.where(accepted > 0, 1 + np.array(decoding._drafted, np.int32), 0)

    settled(patch, change)


def moved_by_one(patch: pytest.MonkeyPatch) -> None:
    settled(patch, lambda decoding, dispatched, accepted: np.minimum(accepted, 1))


@replaced(Decoding, "_verify")
def moved_twice(right: Any, self: Decoding, *about: Any) -> DispatchedStep:
    """Advance twice: by one at dispatch, and by the accepted tokens at reading."""
    dispatched = right(self, *about)
    for sequence, _ in dispatched.sequences:
        sequence.consumed += 1
    return dispatched


def drafted_lanes_alone_move(patch: pytest.MonkeyPatch) -> None:
    def change(decoding: Decoding, dispatched: DispatchedStep, accepted: np.ndarray) -> np.ndarray:
        return np.where(np.array(decoding._drafted) > 0, accepted, 0)

    settled(patch, change)


def count_of_the_step_before(patch: pytest.MonkeyPatch) -> None:
    previous: dict[int, np.ndarray] = {}

    def change(session: Session, dispatched: DispatchedStep, accepted: np.ndarray) -> np.ndarray:
        drafted = np.array(session._scheduler._decoding._drafted) > 0
        last = previous.get(accepted.size, accepted)
        previous[accepted.size] = accepted
        return np.where(drafted | (accepted == 0), accepted, np.maximum(last, 1))

    taken(patch, change)


def count_of_the_lane_beside(patch: pytest.MonkeyPatch) -> None:
    taken(patch, lambda session, dispatched, accepted: np.roll(accepted, 1))


def counts_close_ranks(patch: pytest.MonkeyPatch) -> None:
    """Those that are alive are counted through from 0, lanes are not."""

    def change(session: Session, dispatched: DispatchedStep, accepted: np.ndarray) -> np.ndarray:
        packed = accepted.copy()
        alive = [lane for sequence, lane in dispatched.sequences if sequence.finish_reason is None]
        packed[alive] = accepted[: len(alive)]
        return packed

    taken(patch, change)


def all_drafts_are_given_out(patch: pytest.MonkeyPatch) -> None:
    """The bookkeeping counts accepted tokens, but requests receive all sampled tokens."""
    right, history = Decoding.settle, []

    def settle(self: Decoding, pool: RowPool, dispatched: DispatchedStep, accepted: np.ndarray) -> None:
        right(self, pool, dispatched, history.pop())

    def change(session: Session, dispatched: DispatchedStep, accepted: np.ndarray) -> np.ndarray:
        history.append(accepted)
        return np.where(accepted > 0, 1 + np.array(session._scheduler._decoding._drafted, np.int32), 0)

    patch.setattr(Decoding, "settle", settle)
    taken(patch, change)


def drafts_of_the_step_before(patch: pytest.MonkeyPatch) -> None:
    history: list[np.ndarray] = []

    def change(drafts: np.ndarray) -> np.ndarray:
        history.append(drafts)
        return history[-2] if len(history) > 1 and history[-2].size == drafts.size else drafts

    drafts_told(patch, change)


def drafts_are_certain(patch: pytest.MonkeyPatch) -> None:
    drafts_told(patch, np.zeros_like)


@replaced(Speculation, "_propose")
def drafts_past_the_end(_: Any, self: Speculation, sequence: Any) -> tuple[int, ...]:
    return sequence.drafting.propose(sequence.generated, self.tokens, self._vocab_size)


MUTANTS = (
    EngineMutant("moved-by-all-drafts", "llamAmpere#8", "positions move on by all drafts, accepted or not",
                 Finder.ALONE, moved_by_all_drafts),
    EngineMutant("moved-by-one", "turboquant#352", "positions move on by one, the state by what was accepted",
                 Finder.ALONE, moved_by_one),
    EngineMutant("moved-twice", "SGLang hybrid_linear_attn_backend", "dispatch and verification both move the position",
                 Finder.OWNER, moved_twice),
    EngineMutant("drafted-lanes-alone-move", "vLLM#40738", "lanes without drafts stay where they were", Finder.OWNER,
                 drafted_lanes_alone_move),
    EngineMutant("count-of-the-step-before", "vLLM#39273, vLLM#40738", "a lane without drafts takes its last count",
                 Finder.OWNER, count_of_the_step_before),
    EngineMutant("count-of-the-lane-beside", "vLLM#53919", "accepted counts are permuted once more on the host",
                 Finder.OWNER, count_of_the_lane_beside),
    EngineMutant("counts-close-ranks", "vLLM#53919",
                 "a sequence has left: counts are taken by place among those that are alive", Finder.OWNER,
                 counts_close_ranks),
    EngineMutant("all-drafts-are-given-out", "", "whoever asked is given what was sampled behind rejected drafts too",
                 Finder.ALONE, all_drafts_are_given_out),
    EngineMutant("drafts-of-the-step-before", "vLLM#40880",
                 "the step is told how many drafts there were in the step before", Finder.ALONE,
                 drafts_of_the_step_before),
    EngineMutant("drafts-are-certain", "vLLM#55894", "the step is not told that drafts are drafts", Finder.ALONE,
                 drafts_are_certain),
    EngineMutant("drafts-past-the-end", "", "drafts go on behind the last token that is asked for", Finder.OWNER,
                 drafts_past_the_end),
)  # fmt: skip
