"""Right steps on wrong rows: leftovers, lost writes, labels that promise another position, layouts, owners."""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from labelled_steps import LabelledSteps, Turns
from mutants.mutant import Mutant, Tier
from zoo import gated_delta
from zoo.catalogue import PROGRAMS
from zoo.program import LANES, Program

from ir_passes import SlotError
from ir_passes.sanitizer.verdict import SanitizerError

DECODE = PROGRAMS["gated delta, fresh lanes from zero"]


def ignores_fresh(w, pools, slots, x, fresh):
    """One of two kernels forgets that a lane begins."""
    conv = jnp.where(fresh[:, None, None], 0.0, pools["conv"][slots])
    y, conv, state = gated_delta.delta(w, conv, pools["state"][slots], x)
    return y, {"conv": pools["conv"].at[slots].set(conv), "state": pools["state"].at[slots].set(state)}


FORGETFUL = DECODE.but(step=ignores_fresh)


@functools.cache
def _sanitized(step: Callable[..., Any]) -> LabelledSteps:
    program = next(item for item in (DECODE, FORGETFUL) if item.step is step)
    return LabelledSteps(step, program.args(), program.contract, compiled=True)


class Session:
    """Sequences that take steps on one pool, with labels next to it."""

    def __init__(self, program: Program = DECODE):
        self.steps = copy.copy(_sanitized(program.step))
        self.steps.begin()
        self.ledger = self.steps.ledger
        self.weights, pools, _, self.x, _ = program.args()
        self.pools: Any = jax.tree.map(np.zeros_like, pools)

    def step(self, turns: Turns, slots: Sequence[int], fresh: Sequence[bool] | None = None) -> None:
        """Take one step; lanes at position 0 are fresh by default."""
        idle = LANES - len(turns)
        if fresh is None:
            fresh = [turn is not None and turn[1] == 0 for turn in turns]
        array = np.array([*slots, *[0] * idle], np.int32)
        args = (self.weights, self.pools, array, self.x, np.array([*fresh, *[False] * idle]))
        _, self.pools = self.steps.take(args, [*turns, *[None] * idle])

    def copy(self, source: int, target: int) -> None:
        """The rows of all pools and labels, one onto another."""
        self.pools = jax.tree.map(lambda pool: np.array(pool), self.pools)
        for leaf in jax.tree.leaves(self.pools):
            leaf[target] = leaf[source]
        self.steps.labels = tuple(labels.at[target].set(labels[source]) for labels in self.steps.labels)


def turn(owner: int, position: int, layout: int = 0) -> tuple[int, int, int, int]:
    return owner, position, 1, layout


def honest() -> Session:
    """Two sequences, one followed on its row: no finding."""
    session = Session()
    session.step([turn(1, 0), turn(2, 0)], [3, 8])
    session.step([turn(2, 1), None, turn(1, 1)], [8, 0, 3])
    session.ledger.forget(2)
    session.step([turn(1, 2), turn(3, 0)], [3, 8])
    session.step([turn(3, 1), turn(1, 3)], [8, 3])
    return session


def one_token_prompt() -> None:
    """The prompt has one token, and the batch takes it for one that decodes."""
    honest().step([turn(4, 0)], [8], fresh=[False])


def forgetful_kernel() -> None:
    session = Session(FORGETFUL)
    session.step([turn(1, 0)], [3])
    session.step([turn(2, 0)], [3])


def preempted() -> None:
    """Prefilled again from position 0 on the old row."""
    honest().step([turn(1, 0)], [3], fresh=[False])


def retracted() -> None:
    """Its row was given to another sequence; it comes back as if nothing had happened."""
    session = honest()
    session.step([turn(5, 0)], [3])
    session.step([turn(1, 4)], [3])


def never_captured() -> None:
    """The step ran with the null rows of its capture: nothing was written."""
    session = honest()
    session.step([turn(1, 4)], [0])
    session.step([turn(1, 5)], [3])


def snapshot_too_early() -> None:
    """The row was copied before its labelled step."""
    session = honest()
    session.copy(3, 5)
    session.step([turn(1, 4)], [3])
    session.ledger.adopt(6, session.ledger.label(1))
    session.step([turn(6, 5)], [5])


def snapshot_label() -> None:
    """The copy is labelled with its block's unreached end."""
    session = honest()
    session.copy(3, 5)
    session.ledger.adopt(6, session.ledger.label(1)._replace(position=16))
    session.step([turn(6, 16)], [5])


def snapshot_never_written() -> None:
    """The checkpoint was skipped, its row donated all the same."""
    session = honest()
    session.ledger.adopt(6, session.ledger.label(1))
    session.step([turn(6, 4)], [5])


def half_a_hit() -> None:
    """The prefix was found for attention alone; the state is claimed to be there too."""
    honest().step([turn(6, 4)], [5])


def layout_bit() -> None:
    """Written by one kernel as [v, k], read by another as [k, v]."""
    honest().step([turn(1, 4, layout=1)], [3])


def rows_swapped() -> None:
    honest().step([turn(1, 4), turn(3, 2)], [8, 3])


def another_lanes_count() -> None:
    """Two lanes' numbers of accepted tokens were swapped on the host."""
    session = honest()
    session.step([turn(1, 4), turn(3, 2)], [3, 8])
    session.step([turn(1, 3), turn(3, 5)], [3, 8])


def rolled_back_on_the_host_alone() -> None:
    session = honest()
    session.step([turn(1, 3)], [3])


def _row(id: str, source: str, description: str, attempt: Callable[[], Any], base: Program = DECODE) -> Mutant:
    error = (SanitizerError, SlotError)
    return Mutant(id, source, description, base.name, Tier.SANITIZER, attempt=attempt, error=error)


MUTANTS = (
    _row("one-token-prompt", "tpu-inference#2431, vLLM#32118", "a prompt of one token reads the tenant before",
         one_token_prompt),
    _row("forgetful-kernel", "tpu-inference#2431, tpu-inference#2408", "one of two kernels ignores that a lane begins",
         forgetful_kernel),
    _row("preempted", "vllm-metal#488", "prefilled again on the state as it was", preempted),
    _row("retracted", "SGLang#22493", "resumed on a row that another sequence has had", retracted),
    _row("never-captured", "vLLM#47123", "a step that wrote nothing", never_captured),
    _row("snapshot-too-early", "SGLang#24221", "copied before the step had finished", snapshot_too_early),
    _row("snapshot-label", "vLLM#43559, SGLang#31369", "a snapshot labelled with another position", snapshot_label),
    _row("snapshot-never-written", "SGLang#39342", "a snapshot that was never written", snapshot_never_written),
    _row("half-a-hit", "vLLM#43090", "a prefix hit of attention alone", half_a_hit),
    _row("layout-bit", "SGLang-fork#288, sparkinfer#615", "a row read in another layout than it was written in",
         layout_bit),
    _row("rows-swapped", "tenstorrent#51", "the host's map of lanes is a step ahead", rows_swapped),
    _row("another-lanes-count", "vLLM#53919", "another lane's number of accepted tokens", another_lanes_count),
    _row("rolled-back-on-the-host", "llama.cpp#29117, turboquant#352", "tokens are taken back, the state is not",
         rolled_back_on_the_host_alone),
)  # fmt: skip
