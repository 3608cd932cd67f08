"""Floor of a step on one device: minimum bytes moved and minimum products computed.

A step reads each weight once, and the rows of its tokens in the embedding. It reads and writes the fixed-size state of
every lane, reads the keys and values of earlier positions and writes the keys and values of its tokens. The number of
experts that it reads is the expected number for tokens that are routed uniformly; the model's routing may use fewer.
Products are matrix products; attention, recurrences, norms and sampling are left out.
"""

from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx

from hybridlm.devices.placement import Placement, bytes_on_a_device, numbers_on_a_device
from hybridlm.programs.shapes import AnyShape, Shape
from models import KV_BLOCK, Decoder, kv_blocks
from models.layers.moe import Moe
from models.ops.quantised_weight import QuantisedWeight


@dataclass(frozen=True)
class Floor:
    """Least traffic and arithmetic of a step on each device.

    Attributes:
        moved: bytes read and written.
        flops: operations of products with the weights.
    """

    moved: int
    flops: int


def floor_of(model: Decoder, shape: AnyShape, placement: Placement, cache_dtype: Any, context: int) -> Floor | None:
    """Return the floor of a step of a model; None for moves of rows.

    Args:
        model: the model on one device; its parameters may be abstract.
        shape: the step.
        placement: the devices.
        cache_dtype: dtype of convolution states and KV cache.
        context: positions of each lane after a step that generates or verifies; prompts and texts begin at 0.
    """
    if not isinstance(shape, Shape):
        return None
    lanes = max(1, shape.lanes // placement.data)
    rows = lanes * shape.tokens
    weights = {id(weight_array): weight_array for weight_array in map(_array, _params(model))}
    size, multiplied = 0.0, 0.0
    for _, node in nnx.iter_graph(model):
        if isinstance(node, Moe):
            part, met = node.config.router, _met(node, rows)
            for name in ("gate_up_proj", "up_proj", "down_proj"):
                if (weight := getattr(node, name, None)) is not None:
                    expert_weight = weights.pop(id(_array(weight)))
                    size += met * bytes_on_a_device(expert_weight)
                    multiplied += rows * part.per_token / part.experts * _numbers(expert_weight)
    table = _array(model.embed_tokens)
    if not model.config.tied:
        weights.pop(id(table))
        size += rows * _row_bytes(table)
    head = _array(model.head)
    sampled = lanes if shape.step == "generate" else rows
    for remaining_weight in weights.values():
        size += bytes_on_a_device(remaining_weight)
        if len(remaining_weight.shape) > 1:
            multiplied += (sampled if remaining_weight is head else rows) * _numbers(remaining_weight)
    state_size = model.state_size(cache_dtype)
    previous = 0 if shape.step == "score" or shape.tokens > 1 and shape.step == "generate" else context - shape.tokens
    cached = lanes * (state_size.token - state_size.unused) * (kv_blocks(max(previous, 0)) * KV_BLOCK + shape.tokens)
    return Floor(int(size) + 2 * lanes * state_size.fixed + cached, int(2 * multiplied))


def _met(layer: Moe, rows: int) -> float:
    """Return the fraction of experts that uniformly routed tokens use."""
    router = layer.config.router
    return 1.0 - (1.0 - router.per_token / router.experts) ** rows


def _params(model: Decoder) -> list[Any]:
    return [node for _, node in nnx.iter_graph(model) if isinstance(node, nnx.Param)]


def _array(param: Any) -> Any:
    """The array of a parameter, its type, or a packed weight of either."""
    return param.get_raw_value() if hasattr(param, "get_raw_value") else param[...]


def _row_bytes(weight: Any) -> int:
    """Bytes of one whole row of a matrix."""
    return sum(array.shape[-1] * array.dtype.itemsize for array in jax.tree.leaves(weight))


def _numbers(weight: Any) -> int:
    """Numbers that a device has of a weight."""
    stored = weight.codes if isinstance(weight, QuantisedWeight) else weight
    return numbers_on_a_device(stored) * weight.shape[-1] // stored.shape[-1]
