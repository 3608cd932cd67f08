"""Whether a model may be loaded: what each device has to hold of it, compared with what the device has."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from hybridlm._cache_budget import CacheBudget
from hybridlm._engine import STAGING, Engine
from hybridlm._memory import Demand, available_memory
from hybridlm._placement import Placement
from hybridlm._programs import Shape
from hybridlm.checkpoint import ParameterPath, Shards
from models import Decoder, Weight
from models.platform import platform


def weight_bytes(
    weights: Sequence[Weight], dtype: str, shards: Mapping[ParameterPath, Shards], placement: Placement
) -> int:
    """Bytes of the parameters on each device; what virtual devices of a CPU have alike lies there once for all of them.

    Args:
        weights: every parameter.
        dtype: of the matrices.
        shards: how parameters lie over the devices.
        placement: the devices.
    """
    together = len(placement.local_devices) if platform() == "cpu" else 1
    total = 0
    for one in weights:
        own, kept = shards[one.path], jnp.dtype("float32" if one.float32 else dtype)
        total += own.local_bytes(kept) * (own.different if together > 1 else 1) // together
    return total


def admit_model(
    model: Decoder,
    weights: int,
    cache_dtype: Any,
    lanes: int,
    context: int,
    budget: CacheBudget | None,
    placement: Placement,
) -> Demand:
    """Before weights are read: the memory that each device needs without the steps.

    Args:
        model: what one device holds of the model.
        weights: bytes of its parameters.
        cache_dtype: dtype of convolution and key/value state.
        lanes: most sequences that decode at the same time, on all devices.
        context: most tokens of a sequence.
        budget: bytes for states of earlier prompts; each device may come to hold all of them.
        placement: the devices.

    Raises:
        InsufficientMemory: it is more than there is.
    """
    # The host's share lies in the same memory where that is the device's.
    kept = 0 if budget is None else sum(budget) if platform() == "cpu" else budget.device
    devices, staging = placement.data, placement.staging(lanes, STAGING)
    row = model.state_size(cache_dtype).of
    demand = Demand(weights, row, lanes // devices, staging // devices, context, kept=kept, devices=devices)
    demand.require(available_memory(placement))
    return demand


def admit_steps(engine: Engine, demand: Demand) -> None:
    """Before any pool is allocated: where rows take most of what is left, the scratch of the steps counts too.

    Raises:
        InsufficientMemory: the largest steps' scratch does not fit beside weights and rows.
    """
    left = available_memory(engine.placement)
    if left is None or 2 * (demand.rows + demand.kept) < left:
        return
    largest = [Shape("generate", engine.staging, engine.chunk), Shape("generate", engine.lanes, 1)]
    if engine.speculate is not None:
        largest.append(Shape("verify", engine.lanes, engine.draft_tokens + 1, guesses=engine.guesses))
    scratch = max(engine.program(shape).certificate.memory.temp for shape in largest)
    replace(demand, scratch=scratch).require(left + demand.weights)
