"""Tensors of lightning attention in Ling 2.5 and MiniMax: decay rates, rows by heads."""

import numpy as np

from models.mixers.lightning_attention import LightningAttentionConfig
from models.weights.layer_weights import Names, Path, branch_weights
from models.weights.sources import Weight, WeightSource, computed


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
    name: str,
    *,
    names: Names,
    inputs: WeightSource,
    rates: np.ndarray,
) -> list[Weight]:
    """List the parameters of a layer at `path`.

    Args:
        names: as for `branch_weights`.
        inputs: source of the rows [q | k | v] of all heads.
        rates: decay rate of each head; no file has them.
    """
    sources = {"in_proj": [inputs], "rate": [computed(rates, f"{name}.{names['norm']}.weight", (c.width,))]}
    return branch_weights(c, hidden, path, name, names, sources=sources)
