"""Steps that the sanitizer cannot follow are refused, with the reason and the remedy."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from labelled_steps import LabelledSteps

from ir_passes import LaneContract, Pool, SlotMap
from ir_passes.sanitizer.sanitize import UntrackedError, sanitize
from ir_passes.sanitizer.verdict import UntrackedFault

CONTRACT = LaneContract(
    inputs=(Pool("state"), SlotMap("state", 1, null=False), Pool("kept"), SlotMap("kept", 4, role="write")),
    outputs=(Pool("state"), Pool("kept")),
)
ARGS = jnp.ones((1, 3)), jnp.zeros(1, jnp.int32), jnp.ones((4, 3)), jnp.array([2], jnp.int32)


one_row = lambda state, slots, saved, target: (state.at[slots].set(state[slots] * 2.0), saved)
from_one_row = lambda state, slots, saved, target: (state, saved.at[target].set(state[slots]))


def entering(state, slots, saved, target):
    over = Mesh(np.array(jax.devices()[:1]), ("data",))
    full = jax.shard_map(lambda x: x.at[0].set(0.0), mesh=over, in_specs=P(), out_specs=P(), check_vma=False)
    return state, full(saved)


def handed_over(state, slots, array, target):
    return state, jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(array.shape, array.dtype), array)


@pytest.mark.parametrize(("step", "faults"), [
    (one_row, [(UntrackedFault.ONE_ROW, "args[0], mul"), (UntrackedFault.ONE_ROW, "result[0]")]),
    (from_one_row, [(UntrackedFault.ONE_ROW, "result[0]")]),
    (entering, [(UntrackedFault.DEVICES, "args[2], shard_map")]),
    (handed_over, [(UntrackedFault.OPAQUE, "args[2], pure_callback")]),
])  # fmt: skip
def test_why_it_is_refused(step: Callable[..., tuple], faults: list[tuple[UntrackedFault, str]]) -> None:
    with pytest.raises(UntrackedError) as error:
        sanitize(step, ARGS, CONTRACT)
    results = [(fault.id, fault.about.split(" at ")[0]) for fault in error.value.faults]
    assert set(faults) <= set(results)
    assert all(fault.sentence in str(error.value) for fault in error.value.faults)


def test_copies_out_of_one_row_are_followed() -> None:
    contract = LaneContract(CONTRACT.inputs, (Pool("kept"),))
    steps = LabelledSteps(lambda *args: from_one_row(*args)[1:], ARGS, contract, compiled=True)
    steps.labels = jnp.array([[7, 3, 0, 1]], jnp.int32), jnp.zeros((4, 4), jnp.int32)
    steps.take(ARGS, [None])
    assert steps.labels[1].tolist() == [[0, 0, 0, 0], [0, 0, 0, 0], [7, 3, 0, 1], [0, 0, 0, 0]]
