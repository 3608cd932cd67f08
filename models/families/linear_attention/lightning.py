"""Tensors of lightning attention in Ling 2.5 and MiniMax: decay rates, rows by heads."""

import numpy as np

from models.mixers.lightning_attention import LightningAttentionConfig
from models.weights.layer_weights import Path
from models.weights.sources import Weight, WeightSource, computed, tensor


def slopes(heads: int) -> np.ndarray:
    """Return the decay rate of each head before the factor of the layer (ALiBi, arXiv:2108.12409).

    Rates are `2^(-8 i / heads)`, i from 1; heads beyond a power of two take every second rate of the next power.
    """
    power = 1 << (heads.bit_length() - 1)
    rates = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
    return rates if power == heads else np.concatenate([rates, slopes(2 * power)[::2][: heads - power]])


def lightning_weights(
    c: LightningAttentionConfig,
    hidden: int,
    path: Path,
    names: dict[str, str],
    inputs: WeightSource,
    rates: np.ndarray,
) -> list[Weight]:
    """List the parameters of a layer at `path`.

    Args:
        names: parameter -> tensor.
        inputs: source of the rows [q | k | v] of all heads.
        rates: decay rate of each head; no file has them.
    """
    norms = () if c.qk_eps is None else ("q_norm", "k_norm")
    return [
        Weight((*path, "in_proj"), (3 * c.width, hidden), (inputs,)),
        *(tensor((*path, norm, "weight"), names[norm], (c.head_size,), float32=True) for norm in norms),
        computed((*path, "rate"), rates, names["norm"], (c.width,)),
        tensor((*path, "gate"), names["gate"], (c.width, hidden)),
        tensor((*path, "norm"), names["norm"], (c.width,), float32=True),
        tensor((*path, "out_proj"), names["out_proj"], (hidden, c.width)),
    ]
