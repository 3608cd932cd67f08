"""Float64 NumPy forward of Mamba2 layers, Bamba, Falcon-H1 and Zamba2: slow, obvious.

Written from the equations of arXiv:2405.21060 and, where a family departs from them, from what its transformers module
does. It shares no code with `models` or `hybridlm`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from float64_checkpoint import Float64Checkpoint, Tensors
from float64_reference import attend, convolve, rms_norm, rotate, silu, swiglu

FAMILIES = ("bamba", "falcon_h1")
"""The families of checkpoints that `Float64MambaModel` reads."""


class Mamba2Output(NamedTuple):
    """`hidden` [T, H]; `conv` [K-1, C], the last inputs; `recurrent` [heads, state, size]."""

    hidden: np.ndarray
    conv: np.ndarray
    recurrent: np.ndarray


def mamba2(
    x: np.ndarray,
    weights: Tensors,
    groups: int,
    size: int,
    eps: float,
    limits: tuple[float, float] = (0.0, math.inf),
    norm: str = "gated",
    multipliers: Sequence[float] = (1.0,) * 5,
) -> Mamba2Output:
    """Compute one Mamba2 mixer (SSD, arXiv:2405.21060) on x [T, H] from zero.

    Args:
        weights: as named below `mamba.` or `mixer.`.
        groups, size: groups of heads; size of a head.
        eps: of the gated norm, over each group of channels.
        limits: least and greatest time step.
        norm: "gated" (norm of gated values), "normed" (gated after the norm) or "none".
        multipliers: factors on z, x, B, C and dt.
    """
    tokens, heads = len(x), len(weights["A_log"])
    inner = heads * size
    state_size = (len(weights["conv1d.weight"]) - inner) // (2 * groups)
    parts = [inner, inner, groups * state_size, groups * state_size, heads]
    projected = x @ weights["in_proj.weight"].T * np.repeat(multipliers, parts)
    z, mixed, step = np.split(projected, [inner, len(projected[0]) - heads], axis=-1)
    mixed, conv = convolve(mixed, weights["conv1d.weight"])
    mixed = silu(mixed + weights.get("conv1d.bias", 0.0))
    value, b, c = np.split(mixed, np.cumsum(parts[1:3]), axis=-1)
    value = value.reshape(tokens, heads, size)
    b, c = (part.reshape(tokens, groups, state_size) for part in (b, c))
    step = np.clip(np.logaddexp(0.0, step + weights["dt_bias"]), *limits)

    state, y = np.zeros((heads, size, state_size)), np.zeros((tokens, heads, size))
    for t in range(tokens):
        for head in range(heads):
            group = head * groups // heads
            decay = math.exp(-math.exp(weights["A_log"][head]) * step[t, head])
            state[head] = decay * state[head] + step[t, head] * np.outer(value[t, head], b[t, group])
            y[t, head] = state[head] @ c[t, group] + weights["D"][head] * value[t, head]
    y = y.reshape(tokens, inner)
    if norm != "normed":
        y = y * silu(z)
    if norm != "none":
        grouped = y.reshape(tokens, groups, inner // groups)
        y = rms_norm(grouped, weights["norm.weight"].reshape(groups, -1), eps).reshape(tokens, inner)
    if norm == "normed":
        y = y * silu(z)
    return Mamba2Output(y @ weights["out_proj.weight"].T, conv, state)


def attention(x: np.ndarray, weights: Tensors, config: Mapping[str, Any], rotary: int) -> np.ndarray:
    """Causal attention with grouped queries and rotary positions on the normalised x [T, H]."""
    tokens, heads, kv_heads = len(x), config["num_attention_heads"], config["num_key_value_heads"]
    size = len(weights["q_proj.weight"]) // heads
    q, k, v = (x @ weights[f"{part}_proj.weight"].T for part in ("q", "k", "v"))
    q, k, v = q.reshape(tokens, heads, size), k.reshape(tokens, kv_heads, size), v.reshape(tokens, kv_heads, size)
    theta = config["rope_parameters"]["rope_theta"]
    q, k = rotate(q, rotary, theta), rotate(k * config.get("key_multiplier", 1.0), rotary, theta)
    return attend(q, k, v).reshape(tokens, -1) @ weights["o_proj.weight"].T


class Float64MambaModel(Float64Checkpoint):
    """A checkpoint of one of `FAMILIES`."""

    def mixed(self, x: np.ndarray, layer: str) -> np.ndarray:
        """Sum a layer's mixers: one in Bamba, two scaled ones in Falcon-H1."""
        c, total = self.config, np.zeros_like(x)
        if weights := self.below(f"{layer}.mamba"):
            normed = "normed" if c.get("mamba_norm_before_gate", False) else "gated"
            norm = normed if c.get("mamba_rms_norm", True) else "none"
            inputs = x * c.get("ssm_in_multiplier", 1.0)
            size = len(weights["out_proj.weight"][0]) // c["mamba_n_heads"]
            factors = c.get("ssm_multipliers", [1.0] * 5)
            out = mamba2(inputs, weights, c["mamba_n_groups"], size, c["rms_norm_eps"], norm=norm, multipliers=factors)
            total = total + out.hidden * c.get("ssm_out_multiplier", 1.0)
        if weights := self.below(f"{layer}.self_attn"):
            inputs = x * c.get("attention_in_multiplier", 1.0)
            size = len(weights["q_proj.weight"]) // c["num_attention_heads"]
            rotary = size // 2 if c["model_type"] == "bamba" else size
            total = total + attention(inputs, weights, c, rotary) * c.get("attention_out_multiplier", 1.0)
        return total

    def forward(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits of every position, [T, V]."""
        c, table, eps = self.config, self.tensors["model.embed_tokens.weight"], self.config["rms_norm_eps"]
        gate_factor, down_factor = c.get("mlp_multipliers", [1.0, 1.0])
        x = table[np.asarray(tokens)] * c.get("embedding_multiplier", 1.0)
        for index in range(c["num_hidden_layers"]):
            layer = f"model.layers.{index}"
            x = x + self.mixed(rms_norm(x, self.tensors[f"{layer}.input_layernorm.weight"], eps), layer)
            inputs = rms_norm(x, self.tensors[f"{layer}.pre_ff_layernorm.weight"], eps)
            mlp = self.below(f"{layer}.feed_forward")
            gate, up, down = (mlp[f"{part}_proj.weight"] for part in ("gate", "up", "down"))
            x = x + swiglu(inputs, gate * gate_factor, up, down) * down_factor
        head = table if c["tie_word_embeddings"] else self.tensors["lm_head.weight"]
        final = rms_norm(x, self.tensors["model.final_layernorm.weight"], eps)
        return final @ head.T * c.get("lm_head_multiplier", 1.0)


class Float64Zamba2Model(Float64Checkpoint):
    """A checkpoint of Zamba2; tensors of a shared block are named after its first layer."""

    def block(self, joined: np.ndarray, layer: int, call: int) -> np.ndarray:
        """Return the addend to a layer's input by one call of a shared block."""
        c, eps = self.config, self.config["rms_norm_eps"]
        first = c["hybrid_layer_ids"][call % c["num_mem_blocks"]]
        weights = self.below(f"model.layers.{first}.shared_transformer")

        def adapted(name: str, adapter: str) -> np.ndarray:
            down, up = (weights.get(f"{adapter}_list.{call}.{part}.weight") for part in (0, 1))
            matrix = weights[f"{name}.weight"]
            return matrix if down is None or up is None else matrix + up @ down

        parts = {f"{x}_proj.weight": adapted(f"self_attn.{x}_proj", f"self_attn.linear_{x}_adapter") for x in "qkv"}
        size = len(parts["q_proj.weight"]) // c["num_attention_heads"]
        # Scores are divided by the root of half the size of a head.
        parts["q_proj.weight"] = parts["q_proj.weight"] * math.sqrt(2)
        parts["o_proj.weight"] = weights["self_attn.o_proj.weight"]
        y = attention(rms_norm(joined, weights["input_layernorm.weight"], eps), parts, c, size * c["use_mem_rope"])
        y = rms_norm(y, weights["pre_ff_layernorm.weight"], eps)
        up = adapted("feed_forward.gate_up_proj", "feed_forward.gate_up_proj_adapter")
        gate, up = np.split(y @ up.T, 2, axis=-1)
        y = (gate * (1 + np.vectorize(math.erf)(gate / math.sqrt(2))) / 2 * up) @ weights[
            "feed_forward.down_proj.weight"
        ].T
        return y @ self.tensors[f"model.layers.{layer}.linear.weight"].T

    def forward(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits of every position, [T, V]."""
        c, table, eps = self.config, self.tensors["model.embed_tokens.weight"], self.config["rms_norm_eps"]
        x = embedded = table[np.asarray(tokens)]
        size = c["mamba_expand"] * c["hidden_size"] // c["n_mamba_heads"]
        for index in range(c["num_hidden_layers"]):
            layer, y = f"model.layers.{index}", x
            if index in c["hybrid_layer_ids"]:
                call = c["hybrid_layer_ids"].index(index)
                y, layer = x + self.block(np.concatenate([x, embedded], axis=-1), index, call), f"{layer}.mamba_decoder"
            y = rms_norm(y, self.tensors[f"{layer}.input_layernorm.weight"], eps)
            x = x + mamba2(y, self.below(f"{layer}.mamba"), c["mamba_ngroups"], size, 1e-5).hidden
        return rms_norm(x, self.tensors["model.final_layernorm.weight"], eps) @ table.T
