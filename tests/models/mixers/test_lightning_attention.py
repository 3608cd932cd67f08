"""Lightning attention: chunks, single tokens and the equations in float64."""

import numpy as np
import pytest
from filled import filled, random_values
from flax import nnx
from mixer_lanes import check_equations, check_lengths, recurrence_lengths

from hybridlm.families import Rope
from models.mixers.lightning_attention import LightningAttention, LightningAttentionConfig

HIDDEN = 10
LENGTHS = recurrence_lengths()
ACTIVATED = LightningAttentionConfig(2, 6, 1, 1e-6, activated=True)
TURNED = LightningAttentionConfig(4, 4, 2, 1e-6, qk_eps=1e-5, rope=Rope(2, 100.0), scale=0.5)


def layer(config: LightningAttentionConfig) -> LightningAttention:
    values = random_values(config.heads)
    rates = np.linspace(0.05, 1, config.heads, dtype=np.float32)
    return filled(
        lambda: config.build(HIDDEN, nnx.Rngs(0)), lambda name, shape: rates if name == "rate" else values(name, shape)
    )


@pytest.mark.slow
@pytest.mark.parametrize("config", [ACTIVATED, TURNED])
def test_chunks_equal_single_tokens_at_every_length(config: LightningAttentionConfig) -> None:
    check_lengths(layer(config), HIDDEN, LENGTHS, 5e-4, {"recurrent": 2e-5})


@pytest.mark.parametrize("config", [ACTIVATED, TURNED])
def test_equations(config: LightningAttentionConfig) -> None:
    mixer, c = layer(config), config
    weights = {path[0]: np.asarray(v[...], np.float64) for path, v in nnx.to_flat_state(nnx.state(mixer, nnx.Param))}

    def normed(x: np.ndarray, eps: float) -> np.ndarray:
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)

    def equations(x: np.ndarray) -> dict[str, np.ndarray]:
        mixed = x @ weights["in_proj"].T
        if c.activated:
            mixed = mixed / (1 + np.exp(-mixed))
        q, k, v = (part.reshape(len(x), c.heads, c.head_size) for part in np.split(mixed, 3, axis=-1))
        if c.rope is not None and c.qk_eps is not None:
            q, k = normed(q, c.qk_eps) * weights["q_norm"], normed(k, c.qk_eps) * weights["k_norm"]
            turns = np.exp(1j * np.arange(len(x)))[:, None]  # one pair of neighbours, one radian per position
            for part in (q, k):
                pair = (part[..., 0] + 1j * part[..., 1]) * turns
                part[..., 0], part[..., 1] = pair.real, pair.imag
        state, out = np.zeros((c.heads, c.head_size, c.head_size)), np.zeros_like(v)
        for t in range(len(x)):
            state = np.exp(-weights["rate"])[:, None, None] * state + v[t][:, :, None] * k[t][:, None]
            out[t] = np.einsum("hvk,hk->hv", state, q[t] * c.scale)
        groups = normed(out.reshape(len(x), c.groups, -1), c.eps).reshape(len(x), -1) * weights["norm"]
        gated = groups / (1 + np.exp(-x @ weights["gate"].T))
        return {"out": gated @ weights["out_proj"].T, "recurrent": state}

    check_equations(mixer, HIDDEN, equations)
