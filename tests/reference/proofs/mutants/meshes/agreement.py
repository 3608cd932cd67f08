"""Devices with different slot maps or lengths, in steps that must not write."""

import jax.numpy as jnp
from jax import lax
from mutants.mutant import Evidence, Kind, wrong
from zoo.meshes.agreement import COPY_SPECS, STEP_SPECS
from zoo.meshes.sharded import local_rows
from zoo.meshes.sharded_rows import TARGET, gathered, over, put

from ir_passes.proof.agreement import devices_agree

COPIED, STEPPED = "sharded rows copied where devices agree", "sharded rows and heads where devices agree"
FAULT = Evidence.FAULT


def written_all_the_same(target, source, read, write):
    """The host learns of disagreeing devices after the rows are written."""
    return put(target, write, gathered(source, read)), devices_agree((read, write))


def written_where_they_differ(target, source, read, write):
    """The two rows of the choice are in the wrong order."""
    agree = devices_agree((read, write))
    return put(target, jnp.where(agree, TARGET, write), gathered(source, read)), agree


def one_of_two(target, source, read, write):
    """Rows are written where one of two comparisons holds."""
    agree, also = devices_agree(read), devices_agree(write)
    return put(target, jnp.where(agree | also, write, TARGET), gathered(source, read)), agree & also


def in_turn(target, source, read, write):
    """Devices are compared in every turn of a loop, and the last turn alone decides."""

    turn = lambda _, item: (devices_agree(item), None)
    agree = lax.scan(turn, jnp.array(True), jnp.stack([read, write]))[0]
    return put(target, jnp.where(agree, write, TARGET), gathered(source, read)), agree


def idle_rows_alone(w, state, x, lengths):
    """Idle lanes keep their rows, but nobody is idle where devices disagree."""
    y, state = local_rows(w, state, x, lengths)
    return y, state, devices_agree(lengths)


MUTANTS = (
    wrong(COPIED, "written-though-devices-disagree", "tpu-inference#3565",
          "devices are found to have different slot maps, and rows are written all the same",
          over(written_all_the_same, *COPY_SPECS), Kind.AGREEMENT, evidence=FAULT),
    wrong(COPIED, "written-where-devices-disagree", "JAX", "rows are written where devices disagree, and nowhere else",
          over(written_where_they_differ, *COPY_SPECS), Kind.AGREEMENT, evidence=FAULT),
    wrong(COPIED, "one-comparison-is-enough", "JAX", "rows are written where devices agree about one of two slot maps",
          over(one_of_two, *COPY_SPECS), Kind.AGREEMENT, evidence=FAULT),
    wrong(COPIED, "last-comparison-decides", "JAX", "devices are compared in a loop whose last turn alone decides",
          over(in_turn, *COPY_SPECS), Kind.AGREEMENT, evidence=FAULT),
    wrong(STEPPED, "advanced-though-devices-disagree", "JAX",
          "devices are found to have different lengths, and lanes advance all the same",
          over(idle_rows_alone, *STEP_SPECS), Kind.AGREEMENT, evidence=FAULT),
)  # fmt: skip
