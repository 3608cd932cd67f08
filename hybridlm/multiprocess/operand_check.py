"""Check inside a step, before it writes, that all processes have equal operands.

JAX assumes that replicated arrays are equal on all devices. Each process adds a digest; if digests or slot maps differ,
no row changes on any device.
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
"""uint32 words of an operation's digest."""
EXAMPLE_DIGEST = np.zeros(DIGEST_WORDS, np.uint32)


def with_operand_check(step: Callable[..., tuple], contract: LaneContract) -> tuple[Callable[..., tuple], LaneContract]:
    """Add the argument `digest` and a result to a step: whether all devices agree.

    Args:
        step: positional arguments -> tuple, inside `jax.shard_map`.
        contract: if devices disagree, lengths become 0 or, without lengths, written rows are past the pool's end; the
            proof shows that no row changes then.
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
