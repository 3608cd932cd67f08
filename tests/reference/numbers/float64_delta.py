"""Float64 NumPy forward of Ling 3.0, Ling 2.5 and OLMo Hybrid: slow, obvious, one sequence.

Written from arXiv:2510.26692 and arXiv:2405.04434 and, where a family departs from them, from what its transformers
module does; Ling 2.5 from arXiv:2401.04658 and the code that its authors released. It shares no code with `models` or
`hybridlm`.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from float64_checkpoint import Float64Checkpoint, Tensors
from float64_reference import (
    attend,
    convolve,
    delta_rule,
    grouped_experts,
    rms_norm,
    rotate,
    sigmoid,
    silu,
    swiglu,
)

FAMILIES = ("bailing_hybrid", "olmo_hybrid")
"""The families of checkpoints that `Float64DeltaModel` reads."""


def convolved(x: np.ndarray, weights: Tensors) -> list[np.ndarray]:
    """Convolved queries, keys and values of x [T, H]; three tensors act as one."""
    projected = [x @ weights[f"{part}_proj.weight"].T for part in "qkv"]
    kernel = np.concatenate([weights[f"{part}_conv1d.weight"] for part in "qkv"])
    mixed, _ = convolve(np.concatenate(projected, axis=-1), kernel)
    return np.split(silu(mixed), np.cumsum([part.shape[1] for part in projected])[:-1], axis=-1)


def kimi_delta_attention(x: np.ndarray, weights: Tensors, config: Mapping[str, Any]) -> np.ndarray:
    """Compute one KDA layer (arXiv:2510.26692) on the normalised x [T, H], with Ling's gates."""
    tokens, heads, size = len(x), config["num_attention_heads"], config.get("linear_head_dim", config["head_dim"])
    q, k, v = (part.reshape(tokens, heads, size) for part in convolved(x, weights))
    f = (x @ weights["f_proj.weight"].T + weights["dt_bias"]).reshape(tokens, heads, size)
    rate = np.exp(weights["A_log"]).reshape(heads, 1)
    if config["kda_safe_gate"]:
        log_decay = config["kda_lower_bound"] * sigmoid(rate * f)
    else:
        log_decay = -rate * np.logaddexp(0.0, f)
    read, _ = delta_rule(q, k, v, np.exp(log_decay), sigmoid(x @ weights["b_proj.weight"].T))
    gate = sigmoid(x @ weights["g_proj.weight"].T).reshape(tokens, heads, size)
    out = rms_norm(read, weights["o_norm.weight"], config["rms_norm_eps"]) * gate
    return out.reshape(tokens, -1) @ weights["dense.weight"].T


def latent_attention(x: np.ndarray, weights: Tensors, config: Mapping[str, Any]) -> np.ndarray:
    """Compute one latent attention layer (MLA) on normalised x [T, H], with explicit heads."""
    tokens, heads = len(x), config["num_attention_heads"]
    rank, shared = config["kv_lora_rank"], config["qk_rope_head_dim"]
    local, value = config["qk_nope_head_dim"], config["v_head_dim"]
    rope = config.get("rope_parameters") or config

    def turned(part: np.ndarray) -> np.ndarray:
        """Neighbours form the pairs: even entries first, then odd ones, then rotated in halves."""
        return rotate(np.concatenate([part[..., 0::2], part[..., 1::2]], axis=-1), shared, rope["rope_theta"])

    if config.get("q_lora_rank") is None:
        q = x @ weights["q_proj.weight"].T
    else:
        q = rms_norm(x @ weights["q_a_proj.weight"].T, weights["q_a_layernorm.weight"], 1e-6)
        q = q @ weights["q_b_proj.weight"].T
    q = q.reshape(tokens, heads, local + shared)
    q = np.concatenate([q[..., :local], turned(q[..., local:])], axis=-1)
    row = x @ weights["kv_a_proj_with_mqa.weight"].T
    latent = rms_norm(row[:, :rank], weights["kv_a_layernorm.weight"], 1e-6)
    array = (latent @ weights["kv_b_proj.weight"].T).reshape(tokens, heads, local + value)
    k_shared = np.broadcast_to(turned(row[:, None, rank:]), (tokens, heads, shared))
    out = attend(q, np.concatenate([array[..., :local], k_shared], axis=-1), array[..., local:])
    if "g_proj.weight" in weights:
        out = out * sigmoid(x @ weights["g_proj.weight"].T)[..., None]
    return out.reshape(tokens, -1) @ weights["dense.weight"].T


def decay_rates(heads: int) -> list[float]:
    """Rates of the heads before the factor of the layer, in a geometric series."""
    exponent = math.log2(heads)
    if exponent.is_integer():
        start = 2 ** -(2 ** -(exponent - 3))
        return [start * start**head for head in range(heads)]
    below = 2 ** math.floor(exponent)
    return decay_rates(below) + decay_rates(2 * below)[0::2][: heads - below]


def lightning_attention(x: np.ndarray, weights: Tensors, config: Mapping[str, Any], layer: int) -> np.ndarray:
    """Compute one lightning attention layer of Ling 2.5 (arXiv:2401.04658) on the normalised x [T, H]."""
    tokens, heads, size, eps = len(x), config["num_attention_heads"], config["head_dim"], config["rms_norm_eps"]
    q, k, v = np.split((x @ weights["query_key_value.weight"].T).reshape(tokens, 3 * heads, size), 3, axis=1)
    turned = int(size * config["partial_rotary_factor"]), config["rope_theta"]
    q = rotate(rms_norm(q, weights["query_layernorm.weight"], eps), *turned)
    k = rotate(rms_norm(k, weights["key_layernorm.weight"], eps), *turned)
    decay = np.exp(-np.array(decay_rates(heads)) * (1 - layer / (config["num_hidden_layers"] - 1) + 1e-5))
    out = np.zeros_like(v)
    for head in range(heads):
        state = np.zeros((size, size))
        for t in range(tokens):
            state = decay[head] * state + np.outer(k[t, head], v[t, head])
            out[t, head] = q[t, head] @ state / np.sqrt(size)
    groups = out.reshape(tokens, config["group_norm_size"], -1)
    normed = rms_norm(groups, np.ones(1), eps).reshape(tokens, -1) * weights["g_norm.weight"]
    return (normed * sigmoid(x @ weights["g_proj.weight"].T)) @ weights["dense.weight"].T


def bounded(x: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray, limit: float) -> np.ndarray:
    """SwiGLU of the training code: bounds of the gate's SiLU and of the other factor; 0 is no bound."""
    bound = limit or np.inf
    return (np.minimum(silu(x @ gate.T), bound) * np.clip(x @ up.T, -bound, bound)) @ down.T


def routed(x: np.ndarray, weights: Tensors, config: Mapping[str, Any], layer: int) -> np.ndarray:
    """Sigmoid-routed experts and the shared layer on x [T, H], token by token."""
    lists = (config.get(f"{name}_swiglu_limit_list") or {layer: 0.0} for name in ("expert", "share_expert"))
    limit, shared_limit = (sizes[layer] for sizes in lists)
    shared = (weights[f"shared_experts.{part}_proj.weight"] for part in ("gate", "up", "down"))
    out = bounded(x, *shared, limit=shared_limit)
    published = "n_group" in config
    groups = config["n_group" if published else "num_expert_group"], config["topk_group"]
    count = config["num_experts_per_tok" if published else "num_experts_per_token"]
    factor, normalise = config["routed_scaling_factor"], config.get("moe_renormalize", True)
    run = functools.partial(bounded, limit=limit)
    return out + grouped_experts(x, weights, "gate.expert_bias", groups, count, factor, normalise, run)


def strong_delta_net(x: np.ndarray, weights: Tensors, config: Mapping[str, Any]) -> np.ndarray:
    """Compute one Gated DeltaNet mixer of OLMo Hybrid on the normalised x [T, H]."""
    tokens, heads, dk = len(x), config["linear_num_value_heads"], config["linear_key_head_dim"]
    q, k, v = convolved(x, weights)
    q, k, v = q.reshape(tokens, -1, dk), k.reshape(tokens, -1, dk), v.reshape(tokens, heads, -1)
    step = np.logaddexp(0.0, x @ weights["a_proj.weight"].T + weights["dt_bias"])
    decay = np.exp(-np.exp(weights["A_log"]) * step)[..., None]
    beta = (2.0 if config["linear_allow_neg_eigval"] else 1.0) * sigmoid(x @ weights["b_proj.weight"].T)
    read, _ = delta_rule(q, k, v, decay, beta)
    out = rms_norm(read, weights["o_norm.weight"], 1e-5) * silu(x @ weights["g_proj.weight"].T).reshape(v.shape)
    return out.reshape(tokens, -1) @ weights["o_proj.weight"].T


def normed_attention(x: np.ndarray, weights: Tensors, config: Mapping[str, Any]) -> np.ndarray:
    """OLMo's attention on x [T, H]: norms over all heads, optional positions."""
    tokens, size = len(x), config["hidden_size"] // config["num_attention_heads"]
    q, k = (
        rms_norm(x @ weights[f"{part}_proj.weight"].T, weights[f"{part}_norm.weight"], config["rms_norm_eps"])
        for part in "qk"
    )
    q, k = q.reshape(tokens, -1, size), k.reshape(tokens, -1, size)
    theta = (config.get("rope_parameters") or config).get("rope_theta")
    if theta is not None:
        q, k = rotate(q, size, theta), rotate(k, size, theta)
    out = attend(q, k, (x @ weights["v_proj.weight"].T).reshape(tokens, -1, size))
    return out.reshape(tokens, -1) @ weights["o_proj.weight"].T


class Float64DeltaModel(Float64Checkpoint):
    """A checkpoint of one of `FAMILIES`."""

    def forward(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits [T, V] of every position."""
        return self._hidden(tokens) @ self.tensors["lm_head.weight"].T

    def prediction(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits [T - 1, V] of Ling's prediction head behind each token but the first."""
        layer, before = f"model.layers.{self.config['num_hidden_layers']}", self._hidden(tokens)[:-1]
        embedded = self.tensors["model.word_embeddings.weight"][np.asarray(tokens[1:])]
        pair = np.concatenate([self._norm(embedded, f"{layer}.enorm"), self._norm(before, f"{layer}.hnorm")], axis=-1)
        x = self._ling_layer(layer, pair @ self.tensors[f"{layer}.eh_proj.weight"].T)
        return self._norm(x, f"{layer}.final_layernorm") @ self.tensors["lm_head.weight"].T

    def _hidden(self, tokens: Sequence[int]) -> np.ndarray:
        """Normed hidden states [T, H]."""
        ling = self.config["model_type"] == "bailing_hybrid"
        x = self.tensors["model.word_embeddings.weight" if ling else "model.embed_tokens.weight"][np.asarray(tokens)]
        for index in range(self.config["num_hidden_layers"]):
            x = (self._ling_layer if ling else self._olmo_layer)(f"model.layers.{index}", x)
        return self._norm(x, "model.norm")

    def _norm(self, x: np.ndarray, *names: str) -> np.ndarray:
        """Norm by the first of several names that the file has."""
        weight = next(self.tensors[f"{name}.weight"] for name in names if f"{name}.weight" in self.tensors)
        return rms_norm(x, weight, self.config["rms_norm_eps"])

    def _forward(self, x: np.ndarray, layer: str) -> np.ndarray:
        mlp = self.below(f"{layer}.mlp")
        if "gate.weight" in mlp:
            return routed(x, mlp, self.config, int(layer.rpartition(".")[2]))
        return swiglu(x, *(mlp[f"{part}_proj.weight"] for part in ("gate", "up", "down")))

    def _ling_layer(self, layer: str, x: np.ndarray) -> np.ndarray:
        weights, inputs = self.below(f"{layer}.attention"), self._norm(x, f"{layer}.input_layernorm")
        if "query_key_value.weight" in weights:
            mixed = lightning_attention(inputs, weights, self.config, int(layer.rpartition(".")[2]))
        else:
            mixed = (kimi_delta_attention if "A_log" in weights else latent_attention)(inputs, weights, self.config)
        x = x + mixed
        return x + self._forward(self._norm(x, f"{layer}.post_attention_layernorm"), layer)

    def _olmo_layer(self, layer: str, x: np.ndarray) -> np.ndarray:
        # transformers saves two of the norms under other names than it has for them
        second = (f"{layer}.post_attention_layernorm", f"{layer}.feedforward_layer_norm")
        if attention := self.below(f"{layer}.self_attn"):
            x = x + self._norm(normed_attention(x, attention, self.config), *second)
            return x + self._norm(self._forward(x, layer), f"{layer}.post_feedforward_layernorm")
        inputs = self._norm(x, f"{layer}.input_layernorm", f"{layer}.attention_layer_norm")
        x = x + strong_delta_net(inputs, self.below(f"{layer}.linear_attn"), self.config)
        return x + self._forward(self._norm(x, *second), layer)
