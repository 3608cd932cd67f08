"""A step that compares what the processes were told before it writes a row.

Every process puts the operands of a step on its own devices, and nothing checks that they are those of the others: an
array that is whole on every device is taken to be the same there. So each process adds what its plan amounts to
(`digest`), and where two devices were given different ones, or different slot maps, no row changes on any of them.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from ir_passes import Lane, LaneContract, Shared, SlotMap
from ir_passes.proof.agreement import devices_agree

DIGEST_WORDS = 32
"""Numbers of 32 bits that a plan amounts to."""
EXAMPLE_DIGEST = np.zeros(DIGEST_WORDS, np.uint32)


def with_operand_check(step: Callable[..., tuple], contract: LaneContract) -> tuple[Callable[..., tuple], LaneContract]:
    """The same step with one argument more, `digest`, and one result more: whether devices agree.

    Args:
        step: positional arguments in, a tuple out; run inside `jax.shard_map`.
        contract: of the step. Where devices disagree, its lengths become 0 and the rows that it writes lie past the end
            of their pool; the proof shows that no row changes then.
    """
    entries = contract.inputs

    @functools.wraps(step)
    def run(*given: Any) -> tuple:
        *args, digest = given
        maps = [arg for arg, entry in zip(args, entries, strict=True) if isinstance(entry, SlotMap)]
        agree = devices_agree((digest, maps))
        for i, entry in enumerate(entries):
            if isinstance(entry, Lane) and entry.role == "length":
                args[i] = jnp.where(agree, args[i], jnp.int32(0))
            elif isinstance(entry, SlotMap) and entry.role != "read":
                args[i] = jnp.where(agree, args[i], jnp.int32(entry.size))
        return (*step(*args), agree)

    return run, LaneContract(inputs=(*entries, Shared()), outputs=(*contract.outputs, Shared()))
