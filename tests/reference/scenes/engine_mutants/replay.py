"""Faults of the verifying step: in accepted, replayed and carried tokens.

They differ in numbers alone, so that one program contains all, and an operand selects one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_mutants.mutant import Finder
from jax import Array, lax
from paged_shapes import paged
from verify_scene import Scene, Steps, states

from hybridlm.families import LaneInfo, put_rows, take_rows
from hybridlm.programs.shapes import Shape
from hybridlm.steps import verify
from hybridlm.steps.contract import page_table, slot_map, step_contract
from hybridlm.steps.operands import StepInputs
from hybridlm.steps.structure import Structure
from hybridlm.steps.verify import accept, verify_step
from ir_passes import IsolationError, prove_isolation
from ir_passes import ViolationKind as Kind
from models import Decoder
from models.decoder.decoder import lane_info


class DraftCounts(NamedTuple):
    """Operands of each lane, int32 [N], when it replays.

    Attributes:
        accepted: tokens that count.
        lengths: tokens that it was given.
        drafts: how many of these are drafts.
        width: T.
    """

    accepted: Array
    lengths: Array
    drafts: Array
    width: int


Accept = Callable[[Array, Array, Array, Array], Array]
Count = Callable[[DraftCounts], Array]


def accepted(draft_counts: DraftCounts) -> Array:
    """The right number of tokens to replay, for convolution and recurrence alike."""
    return draft_counts.accepted


def behind_accepted(sampled: Array, draft_counts: DraftCounts, previous: Array) -> Array:
    """The right tokens to carry to the next step: [N, 1]."""
    last = jnp.where(draft_counts.accepted > 0, draft_counts.accepted - 1, 0)[:, None]
    token = jnp.take_along_axis(sampled, last, axis=1, mode="fill")
    return jnp.where(draft_counts.accepted[:, None] > 0, token, previous)


@dataclass(frozen=True)
class StepMutant:
    """The step with one fault.

    Attributes:
        id: unique among engine mutants.
        source: a public report of a bug of the kind, as project#number; "" for one that needs none.
        description: the fault, in one line.
        finder: the replay or the proof.
        kinds: violations; the proof has to report at least one.
        accept: counts of accepted tokens, from (tokens, sampled, lengths, drafts).
        conv, recurrent: how many tokens are replayed into convolutions and into recurrent state.
        on_top: they are replayed into the state after the step, in place of the one before it.
        goes_on: they are replayed as if no lane's sequence began.
        same_key: every token of a lane is sampled with the key of the first.
        carry: the token that is carried, from (sampled, draft_counts, carried before).
        record: changes the recorded inputs of the recurrences; for the proof alone.
    """

    id: str
    source: str
    description: str
    finder: Finder = Finder.REPLAY
    kinds: frozenset[Kind] = frozenset()
    accept: Accept = accept
    conv: Count = accepted
    recurrent: Count = accepted
    on_top: bool = False
    goes_on: bool = False
    same_key: bool = False
    carry: Callable[[Array, DraftCounts, Array], Array] = behind_accepted
    record: Callable[[Any], Any] | None = None


def mutated(structure: Structure, mutants: Sequence[StepMutant]) -> Callable[..., Any]:
    """Return `step(which, params, rows, inputs)`: the step with the mutant's fault."""

    def step(mutant: Array, params: Any, rows: Any, inputs: StepInputs) -> Any:
        tokens, lengths, drafts = inputs.batch.tokens, inputs.batch.lengths, jnp.asarray(inputs.drafts)
        with pytest.MonkeyPatch.context() as patch:
            _put_in(patch, mutants, mutant, lambda counts: DraftCounts(counts, lengths, drafts, tokens.shape[1]))
            (counts, sampled), rows_now = verify_step(structure, None, None)(params, rows, inputs)
        if any(mutant.carry is not behind_accepted for mutant in mutants):
            draft_counts = DraftCounts(counts, lengths, drafts, tokens.shape[1])
            slots = inputs.batch.slots
            carries, carried = [mutant.carry for mutant in mutants], take_rows(rows.token, slots)
            token = lax.switch(mutant, carries, sampled.token, draft_counts, carried)
            rows_now = rows_now._replace(token=put_rows(rows.token, slots, token))
        return (counts, sampled), rows_now

    return step


def _put_in(
    patch: pytest.MonkeyPatch, mutants: Sequence[StepMutant], mutant_index: Array, tell: Callable[[Array], DraftCounts]
) -> None:
    """Put the faults in until the step has been traced."""
    commit, sample_with_logprobs = Decoder.commit, verify.sample_with_logprobs

    def is_true(name: str) -> Array:
        return jnp.array([getattr(mutant, name) for mutant in mutants])[mutant_index]

    def wrong_accept(*about: Array) -> Array:
        return lax.switch(mutant_index, [mutant.accept for mutant in mutants], *about)

    def wrong_commit(self: Decoder, pending: Any, info: LaneInfo, state: Any) -> Any:
        for mutant in mutants:
            pending = pending if mutant.record is None else mutant.record(pending)
        draft_counts = tell(info.lengths)
        begins = jnp.where(is_true("goes_on"), jnp.ones_like(info.positions), info.positions)

        def replay(counts: Array, state: Any) -> Any:
            tokens = jnp.zeros_like(info.valid, jnp.int32)
            lanes = lane_info(tokens, counts, begins, info.kv_blocks, slots=info.slots, pages=info.pages)
            return commit(self, pending, lanes, state)

        conv = lax.switch(mutant_index, [mutant.conv for mutant in mutants], draft_counts)
        if any(mutant.on_top for mutant in mutants):
            replayed = replay(draft_counts.lengths, state)
            state = jax.tree.map(lambda new, old: jnp.where(is_true("on_top"), new, old), replayed, state)
        if all(mutant.conv is mutant.recurrent for mutant in mutants):
            return replay(conv, state)
        recurrent = lax.switch(mutant_index, [mutant.recurrent for mutant in mutants], draft_counts)
        return jax.tree_util.tree_map_with_path(
            lambda path, of_conv, other: of_conv if jax.tree_util.keystr(path).endswith(".conv") else other,
            replay(conv, state),
            replay(recurrent, state),
        )

    def wrong_keys(logits: Array, last: Array, keys: Array, *rest: Any) -> Any:
        first = keys.reshape((-1, tell(keys).width))[:, :1]
        repeated = jnp.broadcast_to(first, (first.shape[0], tell(keys).width)).reshape(-1)
        return sample_with_logprobs(logits, last, jnp.where(is_true("same_key"), repeated, keys), *rest)

    patch.setattr(verify, "accept", wrong_accept)
    patch.setattr(Decoder, "commit", wrong_commit)
    patch.setattr(verify, "sample_with_logprobs", wrong_keys)


RIGHT = StepMutant("", "", "nothing")
"""The unchanged step."""


class Wanted(NamedTuple):
    """A scene, and its accepted tokens' effects one at a time."""

    scene: Scene
    sampled: np.ndarray
    rows: Any


class Faulty:
    """The steps of a model with faults, all in one program.

    Args:
        steps: the unchanged model's steps.
        mutants: that the replay has to find.
        scenes: the scenes in question.
    """

    def __init__(self, steps: Steps, mutants: Sequence[StepMutant], scenes: Sequence[Scene]):
        self._ids = ["", *(mutant.id for mutant in mutants)]
        structure = steps.lm.engine.programs.structure
        self._program = jax.jit(mutated(structure, [RIGHT, *mutants]))
        self._steps = Steps(steps.lm)
        self._wanted = [Wanted(scene, *steps.one_by_one(scene)) for scene in scenes]

    def wrong(self, id: str) -> str:
        """Return signs of the mutant in the scenes; the mutant "" is the unchanged step."""
        mutant = jnp.int32(self._ids.index(id))
        shape = Shape("verify", self._steps.lanes, self._steps.tokens, self._steps.lanes)
        self._steps._programs[paged(self._steps.lm.engine, shape)] = lambda *args: self._program(mutant, *args)
        return "; ".join(filter(None, (self._difference(wanted) for wanted in self._wanted)))

    def _difference(self, wanted: Wanted) -> str:
        scene = wanted.scene
        accepted, sampled, rows = self._steps.verify(scene.rows, scene.lanes)
        if accepted.tolist() != scene.accepted:
            return f"accepted {accepted.tolist()}, expected {scene.accepted}"
        for lane, (count, end) in enumerate(zip(scene.accepted, scene.ends, strict=True)):
            if sampled[lane, :count].tolist() != wanted.sampled[lane, :count].tolist():
                return f"lane {lane} draws {sampled[lane, :count]}, expected {wanted.sampled[lane, :count]}"
            if rows.token[lane] != wanted.rows.token[lane]:
                return f"lane {lane} carries {rows.token[lane]}, expected {wanted.rows.token[lane]}"
            for got, want in zip(states(rows, lane, end), states(wanted.rows, lane, end), strict=True):
                if not np.allclose(got, want, atol=5e-5, rtol=1e-4):
                    return f"lane {lane}: rows differ by {np.abs(got - want).max():.2g}"
        return ""


def refused(steps: Steps, mutant: StepMutant) -> set[Kind]:
    """The violations that the proof reports of the step with a fault."""
    shape = paged(steps.lm.engine, Shape("verify", steps.lanes, steps.tokens, steps.lanes))
    step = mutated(steps.lm.engine.programs.structure, [mutant])
    args = steps.lm.engine.example_arguments(shape)
    try:
        pages = page_table(shape.pages) if shape.pages else None
        contract = step_contract(True, steps.lm.engine.programs.structure.arrays, slot_map(shape.rows), pages)
        prove_isolation(lambda *args: step(jnp.int32(0), *args), args, contract)
    except IsolationError as error:
        return {violation.kind for violation in error.violations}
    return set()
