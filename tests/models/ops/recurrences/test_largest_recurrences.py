"""Kernels of recurrences in their largest blocks keep the limits of each card; no GPU is needed."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from card_kernels import CARDS, array, check_limits

from hybridlm.families import DeltaTokens, LaneInfo, RecurrenceInputs, layer_conv, ssd
from models import Devices
from models.ops.recurrences.delta_rule import run_delta_rule

pytestmark = pytest.mark.target_cuda
GPU = Devices(platform="gpu", kernels="auto")
Case = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function with kernels, and the types of its arrays."""


def lane_arrays(lanes: int) -> tuple[Any, ...]:
    """Return types of lengths, fresh lanes and slots."""
    return array(lanes, dtype=jnp.int32), array(lanes, dtype=jnp.bool_), array(lanes, dtype=jnp.int32)


def info_of(tokens: int, lengths: Any, fresh: Any, slots: Any) -> LaneInfo:
    valid = jnp.arange(tokens)[None] < lengths[:, None]
    return LaneInfo(lengths, jnp.zeros_like(lengths), valid, fresh, 1, slots=slots)


def delta(tokens: int, size: int, by_channel: bool) -> Case:
    """Return tokens of a delta rule from its convolution's outputs, in rows by slot."""
    lanes, key_heads, heads = 2, 2, 4

    def run(channels: Any, decay: Any, beta: Any, state: Any, *each: Any) -> Any:
        token_inputs = DeltaTokens(channels, decay, beta)
        return tuple(run_delta_rule(channels, key_heads, token_inputs, info_of(tokens, *each), state, GPU))

    decay = array(lanes, tokens, heads, *([size] if by_channel else []))
    channels = array(lanes, tokens, (2 * key_heads + heads) * size)
    return run, (channels, decay, array(lanes, tokens, heads), array(8, heads, size, size), *lane_arrays(lanes))


def surrounded(tokens: int, size: int) -> Case:
    """Return tokens of SSD with factors on its values."""
    lanes, groups, heads = 2, 2, 4

    def run(key: Any, value: Any, decay: Any, skip: Any, state: Any, *each: Any) -> Any:
        info = info_of(tokens, *each)
        inputs = RecurrenceInputs(key, key, value, decay, state, info.valid, info.fresh, None, GPU, info.slots)
        return tuple(ssd(inputs, surroundings=(-decay, skip)))

    arrays = array(lanes, tokens, groups, size), array(lanes, tokens, heads, size), array(lanes, tokens, heads)
    return run, (*arrays, array(heads), array(8, heads, size, size), *lane_arrays(lanes))


def convolution(tokens: int, taps: int) -> Case:
    lanes, channels = 2, 1024

    def run(x: Any, weight: Any, bias: Any, state: Any, *each: Any) -> Any:
        return layer_conv(x, weight, state, info_of(tokens, *each), bias, GPU)

    weight, state = array(channels, 1, taps), array(8, taps - 1, channels, dtype=jnp.bfloat16)
    return run, (array(lanes, tokens, channels), weight, array(channels), state, *lane_arrays(lanes))


LARGEST: dict[str, Case] = {
    "delta rule, 1 token of 256": delta(1, 256, False), "KDA, 1 token of 256": delta(1, 256, True),
    "delta rule, 16 tokens of 128": delta(16, 128, False), "KDA, 16 tokens of 128": delta(16, 128, True),
    "SSD, 1 token of 256": surrounded(1, 256), "SSD, 16 tokens of 128": surrounded(16, 128),
    "delta rule, prompts of 128": delta(1024, 128, False), "KDA, prompts of 128": delta(1024, 128, True),
    "SSD, prompts of 256": surrounded(1024, 256), "convolution, 16 tokens, 8 taps": convolution(16, 8),
}  # fmt: skip
"""Name -> an operation in the largest blocks that `supports` takes."""


@pytest.mark.each_value
@pytest.mark.parametrize("target", CARDS)
@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_blocks_of_a_recurrence_keep_the_limits_of_each_card(name: str, target: str) -> None:
    """A delta rule of 256 would spill 440 bytes in prompts."""
    run, arrays = LARGEST[name]
    check_limits(target, run, *arrays)
