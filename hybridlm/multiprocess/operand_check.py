"""Check inside a step, before it writes, that all processes have the same operands.

Every process puts the operands of a step on its own devices, and JAX does not check that they are equal: a replicated
array is assumed to be the same everywhere. So each process adds a digest of its operation (`digest`), and if two
devices have different digests, or different slot maps, no row changes on any of them.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ir_passes import Lane, LaneContract, Shared, SlotMap
from ir_passes.contract.prefix import is_entry
from ir_passes.proof.agreement import devices_agree

DIGEST_WORDS = 32
"""Length of the digest of an operation, in uint32."""
EXAMPLE_DIGEST = np.zeros(DIGEST_WORDS, np.uint32)


def with_operand_check(step: Callable[..., tuple], contract: LaneContract) -> tuple[Callable[..., tuple], LaneContract]:
    """Add one argument, `digest`, and one result to a step: whether all devices agree.

    Args:
        step: positional arguments in, a tuple out; run inside `jax.shard_map`.
        contract: contract of the step. If devices disagree, its lengths become 0; without lengths, the rows that it
            writes are past the end of their pool. The proof shows that no row changes then.
    """
    entries = contract.inputs
    counted = any(_is_length(entry) for entry in jax.tree.leaves(entries, is_leaf=is_entry))

    @functools.wraps(step)
    def run(*operands: Any) -> tuple:
        *args, digest = operands
        maps = [arg for arg, entry in zip(args, entries, strict=True) if isinstance(entry, SlotMap)]
        agree = devices_agree((digest, maps))

        def guarded(entry: Any, arg: Any) -> Any:
            if _is_length(entry):
                return jnp.where(agree, arg, jnp.int32(0))
            if isinstance(entry, SlotMap) and entry.role != "read" and not counted:
                return jnp.where(agree, arg, jnp.int32(entry.size))
            return arg

        return *step(*jax.tree.map(guarded, entries, tuple(args), is_leaf=is_entry)), agree

    return run, replace(contract, inputs=(*entries, Shared()), outputs=(*contract.outputs, Shared()))


def _is_length(entry: Any) -> bool:
    return isinstance(entry, Lane) and entry.role == "length"
