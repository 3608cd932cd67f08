"""Steps over a mesh that compare devices' operands and keep rows after a difference."""

from typing import Any

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from zoo.meshes.sharded import ROW_RESULTS, ROW_SPECS, STATE, draw, local_rows
from zoo.meshes.sharded_rows import COPY, SPLIT, TARGET, gathered, over, put
from zoo.meshes.sharded_rows import draw as draw_copy
from zoo.program import Program

from ir_passes import Lane, LaneContract, Pool, Shared
from ir_passes.proof.agreement import devices_agree

COPIES = LaneContract(inputs=COPY.inputs, outputs=(Pool("target"), Shared()))
ROWS = LaneContract(inputs=(Shared(), STATE, Lane(), Lane(role="length")), outputs=(Lane(), STATE, Shared()))
COPY_SPECS: tuple[Any, ...] = (SPLIT, SPLIT, P(), P(), (SPLIT, P()))
STEP_SPECS = (*ROW_SPECS, (*ROW_RESULTS, P()))


def local_copy(target, source, read, write):
    """Both slot maps are whole on every device."""
    agree = devices_agree((read, write))
    return put(target, jnp.where(agree, write, TARGET), gathered(source, read)), agree


def local_copy_by_two(target, source, read, write):
    """Each slot map is compared by itself."""
    agree = devices_agree(read) & devices_agree(write)
    return put(target, jnp.where(agree, write, TARGET), gathered(source, read)), agree


def local_step(w, state, x, lengths):
    """Devices along `model` have the same lanes: their lengths ought to be the same."""
    agree = devices_agree(lengths)
    y, state = local_rows(w, state, x, jnp.where(agree, lengths, 0))
    return y, state, agree


PROGRAMS = (
    Program("sharded rows copied where devices agree", over(local_copy, *COPY_SPECS), COPIES, draw_copy),
    Program("sharded rows copied where devices agree twice", over(local_copy_by_two, *COPY_SPECS), COPIES, draw_copy),
    Program("sharded rows and heads where devices agree", over(local_step, *STEP_SPECS), ROWS, draw),
)
