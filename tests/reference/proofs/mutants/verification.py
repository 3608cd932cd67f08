"""Drafts verified in one step: counts that are wrong, or that come from elsewhere."""

import jax.numpy as jnp
from mutants.mutant import Kind, wrong
from zoo import verification
from zoo.verification import attempt, count, replay


def _counted(amend):
    """The step with changed counts, in results and replay alike."""

    def step(w, pools, tokens, lengths):
        x, mixed, sampled = attempt(w, pools, tokens, lengths)
        accepted = amend(tokens, sampled, lengths)
        return {"tokens": sampled, "accepted": accepted}, replay(w, pools, x, mixed, sampled, accepted)

    return step


def _ever_right(tokens, sampled):
    return 1 + jnp.sum(jnp.cumprod((tokens[:, 1:] == sampled[:, :-1]).astype(jnp.int32), axis=1), axis=1)


def idle_count_told(w, pools, tokens, lengths):
    """Rows stay, but the host hears that an idle lane moved."""
    outputs, pools = verification.step(w, pools, tokens, lengths)
    return {**outputs, "accepted": _ever_right(tokens, outputs["tokens"])}, pools


def drafts_alone_counted(tokens, sampled, lengths):
    """Drafts without their first token: -1 where one is subtracted."""
    return jnp.where(lengths > 0, count(tokens, sampled, lengths) - 2, 0)


def least_of_the_batch(tokens, sampled, lengths):
    """Every lane accepts as few as the lane that accepts least."""
    smallest = jnp.min(jnp.where(lengths > 0, count(tokens, sampled, lengths), 99))
    return jnp.where(lengths > 0, jnp.minimum(count(tokens, sampled, lengths), smallest), 0)


MUTANTS = (
    wrong("drafts verified and replayed", "idle-lane-accepts", "vLLM#51508",
          "an idle lane is replayed by the token that it would have accepted",
          _counted(lambda tokens, sampled, lengths: _ever_right(tokens, sampled)), Kind.IDLE),
    wrong("drafts verified and replayed", "idle-lane-counted", "vLLM#51508",
          "an idle lane keeps its rows and is said to have accepted", idle_count_told, Kind.ACCEPTED),
    wrong("drafts verified and replayed", "count-below-zero", "vLLM#50021",
          "counts that leave out the first token, less one: -1 where nothing was drafted",
          _counted(drafts_alone_counted), Kind.ACCEPTED),
    wrong("drafts verified and replayed", "least-of-the-batch", "vLLM#40738",
          "every lane accepts as many as the one that accepts least", _counted(least_of_the_batch), Kind.CROSS_LANE),
    wrong(
        "drafts verified and replayed",
        "counts-of-the-lane-beside",
        "vLLM#53919",
        "each lane is replayed by the count of the lane beside it",
        _counted(
            lambda tokens, sampled, lengths: jnp.where(lengths > 0, jnp.roll(count(tokens, sampled, lengths), 1), 0)
        ),
        Kind.CROSS_LANE,
    ),
)  # fmt: skip
