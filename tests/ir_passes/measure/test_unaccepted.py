"""Tokens after the accepted ones of a lane change neither its rows nor its count."""

import jax.numpy as jnp
import numpy as np
import pytest
from zoo import verification
from zoo.catalogue import PROGRAMS
from zoo.verification import CONTRACT, attempt, count, replay

from ir_passes import (
    Claim,
    ContractError,
    ContractFault,
    Lane,
    LaneContract,
    NotCovered,
    Pool,
    Shared,
    SlotMap,
    compile_step,
    prove_isolation,
)
from ir_passes.measure.unaccepted import unaccepted_reach

TOKENS = {"args[2]": 1}
ARGS = verification.draw(np.random.default_rng(2))


@pytest.mark.parametrize("name", ["drafts verified and replayed", "drafts verified and replayed, vmapped"])
def test_right_steps_write_accepted_tokens_only(name: str) -> None:
    program = PROGRAMS[name]
    calls = [unaccepted_reach(program.step, program.args(seed), program.contract, TOKENS) for seed in range(2)]
    assert [item.reached for item in calls] == [()] * 2
    assert all(item.compared > 8 for item in calls)


def drafts_written(w, pools, tokens, lengths):
    """All that was tried is replayed."""
    x, mixed, sampled = attempt(w, pools, tokens, lengths)
    accepted = count(tokens, sampled, lengths)
    return {"tokens": sampled, "accepted": accepted}, replay(w, pools, x, mixed, sampled, lengths)


def convolution_at_the_end(w, pools, tokens, lengths):
    """llama.cpp#28019: the state is replayed, but the convolution's tail has all tokens."""
    x, mixed, sampled = attempt(w, pools, tokens, lengths)
    accepted = count(tokens, sampled, lengths)
    new, ahead = (replay(w, pools, x, mixed, sampled, length) for length in (accepted, lengths))
    return {"tokens": sampled, "accepted": accepted}, {**new, "conv": ahead["conv"]}


def one_too_many(w, pools, tokens, lengths):
    """The first draft that is wrong is replayed too."""
    x, mixed, sampled = attempt(w, pools, tokens, lengths)
    accepted = count(tokens, sampled, lengths)
    return {"tokens": sampled, "accepted": accepted}, replay(
        w, pools, x, mixed, sampled, jnp.minimum(accepted + 1, lengths)
    )


def counted_past_a_wrong_one(w, pools, tokens, lengths):
    """All right drafts count, those after a wrong one too."""
    x, mixed, sampled = attempt(w, pools, tokens, lengths)
    drafted = jnp.arange(1, tokens.shape[1], dtype=jnp.int32)[None] < lengths[:, None]
    right = jnp.sum((tokens[:, 1:] == sampled[:, :-1]) & drafted, axis=1, dtype=jnp.int32)
    accepted = jnp.where(lengths > 0, 1 + right, 0)
    return {"tokens": sampled, "accepted": accepted}, replay(w, pools, x, mixed, sampled, accepted)


@pytest.mark.parametrize(("step", "where"), [
    (convolution_at_the_end, "result[1]['conv']"),
    (one_too_many, "result[1]['state']"),
    pytest.param(drafts_written, "result[1]['state']", marks=pytest.mark.long),
    (counted_past_a_wrong_one, "the count of accepted tokens"),
])  # fmt: skip
def test_dependence_on_rejected_tokens_is_measured(step, where: str) -> None:
    assert prove_isolation(step, ARGS, CONTRACT)
    reached = unaccepted_reach(step, ARGS, CONTRACT, TOKENS).reached
    assert any(where in line for line in reached)
    if step is convolution_at_the_end:
        assert all(where in line for line in reached)


KEYS = LaneContract(
    inputs=(Pool("kv", dims=("slot", "position")), SlotMap("kv", 6), Lane(), Lane(role="length")),
    outputs=(Lane(role="accepted"), Pool("kv", dims=("slot", "position"))),
)


def cached(pool, slots, tokens, lengths):
    """Every token is written at its position; a token above 1 is wrong."""
    right = (tokens < 2) & (jnp.arange(3)[None] < lengths[:, None])
    accepted = jnp.sum(jnp.cumprod(right.astype(jnp.int32), axis=1), axis=1)
    new = jnp.where((lengths > 0)[:, None], tokens.astype(jnp.float32), pool[slots])
    return accepted, pool.at[slots].set(new)


def test_pools_by_position_are_left_out() -> None:
    tokens = np.array([[0, 2, 3], [1, 1, 1], [4, 0, 5]], np.int32)
    args = np.zeros((6, 3), np.float32), np.array([4, 1, 3], np.int32), tokens, np.full(3, 3, np.int32)
    assert unaccepted_reach(cached, args, KEYS, TOKENS).reached == ()
    reached = unaccepted_reach(cached, args, KEYS, TOKENS, by_position=lambda path: False).reached
    assert {line.split(":")[0] for line in reached} == {"lane 0", "lane 2"}


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ContractError, check=lambda error: error.ids == (ContractFault.TOKENS,)):
        unaccepted_reach(verification.step, ARGS, CONTRACT, {"args[9]": 1})
    with pytest.raises(ContractError, check=lambda error: error.ids == (ContractFault.TOKENS,)):
        unaccepted_reach(verification.step, ARGS, CONTRACT, {"args[3]": 1})
    plain = LaneContract((Shared(), Pool("r")), (Pool("r"), Lane()))
    with pytest.raises(ContractError, check=lambda error: error.ids == (ContractFault.ACCEPTED,)):
        unaccepted_reach(lambda w, r: (r, r), (np.ones(1, np.float32), np.ones((2, 1), np.float32)), plain, {})


@pytest.mark.long
def test_certificate_states_that_it_is_not_proved() -> None:
    program = PROGRAMS["drafts verified and replayed"]
    certificate = compile_step(program.step, program.args(), program.contract, may_copy=["*conv*"]).certificate
    assert NotCovered.ACCEPTED_TOKENS_ONLY in {item.id for item in certificate.not_covered}
    assert Claim.ACCEPTED in {item.id for item in certificate.proved}
