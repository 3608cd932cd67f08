"""Float64 NumPy forward of GigaChat3.5 and Alice AI: slow, obvious, one sequence.

Written from the model files that their authors sent to vLLM, the code that GigaChat was trained with, and
arXiv:2603.15031. It shares no code with `models` or `hybridlm`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from float64_checkpoint import Float64Checkpoint, Tensors
from float64_delta import attend, convolved, delta_rule
from float64_reference import gated_attention, rms_norm, sigmoid, silu, softmax

FAMILIES = ("gigachat3_5", "alice_ai")
"""The families of checkpoints that `Float64GatedModel` reads."""


def swiglu(x: np.ndarray, weights: Tensors, limit: float) -> np.ndarray:
    """A feed-forward layer on x [T, H]; `limit` bounds its inner inputs, 0 does not."""
    gate, up = x @ weights["gate_proj.weight"].T, x @ weights["up_proj.weight"].T
    if limit:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return (silu(gate) * up) @ weights["down_proj.weight"].T


def below(weights: Tensors, prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def expert(weights: Tensors, number: int) -> dict[str, np.ndarray]:
    """Matrices of an expert, from its own tensors or from those of all experts."""
    if "experts.gate_up_proj" not in weights:
        return below(weights, f"experts.{number}.")
    gate, up = np.split(weights["experts.gate_up_proj"][number], 2)
    down = weights["experts.down_proj"][number]
    return {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": down}


def routed(x: np.ndarray, weights: Tensors, config: Mapping[str, Any], groups: int, kept: int, scale: float):
    """Sigmoid-routed experts of x [T, H], chosen with the bias and weighted without it."""
    out, scores = np.zeros_like(x), sigmoid(x @ weights["gate.weight"].T)
    for t in range(len(x)):
        preference = (scores[t] + weights["gate.e_score_correction_bias"]).reshape(groups, -1)
        best = np.argsort(-np.sort(preference, axis=-1)[:, -2:].sum(axis=-1), kind="stable")[:kept]
        preference[[group for group in range(groups) if group not in best]] = -np.inf
        chosen = np.argsort(-preference.reshape(-1), kind="stable")[: config["num_experts_per_tok"]]
        total = scores[t, chosen].sum() if config.get("norm_topk_prob", True) else 1.0
        for e in chosen:
            share = scale * scores[t, e] / total
            out[t] += share * swiglu(x[t], expert(weights, e), config.get("swiglu_limit") or 0.0)
    return out


def yarn(scaling: Mapping[str, Any], size: int, theta: float) -> tuple[np.ndarray, float, float]:
    """Radians per position of each pair (arXiv:2309.00071), factor on rotated entries, and factor on scores."""
    plain, factor = theta ** (-np.arange(0, size, 2) / size), scaling["factor"]
    turns = lambda number: (
        size * math.log(scaling["original_max_position_embeddings"] / (number * 2 * math.pi)) / (2 * math.log(theta))
    )
    low = max(math.floor(turns(scaling.get("beta_fast", 32))), 0)
    high = min(math.ceil(turns(scaling.get("beta_slow", 1))), size - 1)
    ramp = np.clip((np.arange(size // 2) - low) / max(high - low, 0.001), 0, 1)
    mscale = lambda name: 0.1 * scaling[name] * math.log(factor) + 1
    return (
        plain / factor * ramp + plain * (1 - ramp),
        mscale("mscale") / mscale("mscale_all_dim"),
        mscale("mscale_all_dim") ** 2,
    )


class Float64GatedModel(Float64Checkpoint):
    """A checkpoint of one of `FAMILIES`."""

    def forward(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits [T, V] of every position."""
        embedded = self.tensors["model.embed_tokens.weight"][np.asarray(tokens)]
        if self.config["model_type"] == "alice_ai":
            x = rms_norm(self._blocks(embedded), 1 + self.tensors["model.norm.weight"], self._eps)
        else:
            x = embedded
            for index in range(self.config["num_hidden_layers"]):
                x = self._giga_layer(f"model.layers.{index}", x)
            x = self._gated_norm(x, "model.norm")
        head = "model.embed_tokens" if self.config.get("tie_word_embeddings") else "lm_head"
        return x @ self.tensors[f"{head}.weight"].T

    @property
    def _eps(self) -> float:
        return self.config["rms_norm_eps"]

    # GigaChat3.5

    def _gated_norm(self, x: np.ndarray, name: str) -> np.ndarray:
        """A norm, times twice (or another factor) the sigmoid of a small network of its result."""
        normed = rms_norm(x, 1 + self.tensors[f"{name}.weight"], self._eps)
        inner = silu(normed @ self.tensors[f"{name}.gate_up_projection.weight"].T)
        gate = sigmoid(inner @ self.tensors[f"{name}.gate_down_projection.weight"].T)
        return normed * self.config.get("layernorm_gating_weight", 2.0) * gate

    def _giga_layer(self, layer: str, x: np.ndarray) -> np.ndarray:
        inputs = self._gated_norm(x, f"{layer}.input_layernorm")
        linear = f"{layer}.self_attn.A_log" in self.tensors
        mixed = (self._delta_net if linear else self._latent_attention)(f"{layer}.self_attn", inputs)
        x = x + self._gated_norm(mixed, f"{layer}.post_self_attn_layernorm")
        inputs = self._gated_norm(x, f"{layer}.post_attention_layernorm")
        return x + self._gated_norm(self._giga_forward(f"{layer}.mlp", inputs), f"{layer}.post_feedforward_layernorm")

    def _giga_forward(self, name: str, x: np.ndarray) -> np.ndarray:
        c, weights = self.config, self.below(name)
        limit = c.get("swiglu_limit") or 0.0
        if "gate.weight" not in weights:
            return swiglu(x, weights, limit)
        out = routed(x, weights, c, c["n_group"], c["topk_group"], c["routed_scaling_factor"])
        return out + swiglu(x, below(weights, "shared_experts."), limit)

    def _delta_net(self, name: str, x: np.ndarray) -> np.ndarray:
        """Gated DeltaNet with fused projections by key head, and a factor times a sigmoid as the gate of its norm."""
        c, weights, tokens = self.config, self.below(name), len(x)
        keys, values, dk = c["linear_num_key_heads"], c["linear_num_value_heads"], c["linear_key_head_dim"]
        dv, taps, group = c["linear_value_head_dim"], c["linear_conv_kernel_dim"], values // keys
        fused = (x @ weights["in_proj_qkvz.weight"].T).reshape(tokens, keys, -1)
        q, k, v, z = np.split(fused, np.cumsum([dk, dk, group * dv]), axis=-1)
        mixed = np.concatenate([part.reshape(tokens, -1) for part in (q, k, v)], axis=-1)
        padded = np.concatenate([np.zeros((taps - 1, mixed.shape[1])), mixed])
        kernel = weights["conv1d.weight"][:, 0]
        mixed = silu(np.sum([padded[tap : tap + tokens] * kernel[:, tap] for tap in range(taps)], axis=0))
        q, k, v = np.split(mixed, [keys * dk, 2 * keys * dk], axis=-1)
        b, a = np.split((x @ weights["in_proj_ba.weight"].T).reshape(tokens, keys, 2 * group), 2, axis=-1)
        step = np.logaddexp(0, a.reshape(tokens, values) + weights["dt_bias"])
        decay = np.exp(-np.exp(weights["A_log"]) * step)[..., None]
        q, k = (part.reshape(tokens, keys, dk) for part in (q, k))
        read = delta_rule(q, k, v.reshape(tokens, values, dv), decay, sigmoid(b.reshape(tokens, values)))
        centred = c["linear_gating_type"].endswith("zero_centered")
        normed = rms_norm(read, weights["norm.weight"] + centred, c.get("linear_attn_o_norm_eps") or self._eps)
        gated = normed * c["linear_sigmoid_gate_scale"] * sigmoid(z.reshape(tokens, values, dv))
        return gated.reshape(tokens, -1) @ weights["out_proj.weight"].T

    def _latent_attention(self, name: str, x: np.ndarray) -> np.ndarray:
        """Latent attention with explicit heads, normed and scaled queries and latents, and a gate of every output."""
        c, weights, tokens, heads = self.config, self.below(name), len(x), self.config["num_attention_heads"]
        rank, shared, local = c["kv_lora_rank"], c["qk_rope_head_dim"], c["qk_nope_head_dim"]
        scaled = c.get("use_mla_scaling_factor", True)
        alpha = lambda width: math.sqrt(c["hidden_size"] / width) if scaled else 1.0
        radians, amplitude, factor = c["rope_theta"] ** (-np.arange(0, shared, 2) / shared), 1.0, 1.0
        if c.get("rope_scaling"):
            radians, amplitude, factor = yarn(c["rope_scaling"], shared, c["rope_theta"])

        def turned(part: np.ndarray) -> np.ndarray:
            """Rotate neighbours as complex numbers; scores do not depend on the order of pairs."""
            angles = np.arange(tokens)[:, None, None] * radians
            pairs = (part[..., 0::2] + 1j * part[..., 1::2]) * np.exp(1j * angles)
            return amplitude * np.concatenate([pairs.real, pairs.imag], axis=-1)

        if c["q_lora_rank"] is None:
            q = x @ weights["q_proj.weight"].T
        else:
            q = self._gated_norm(x @ weights["q_a_proj.weight"].T, f"{name}.q_a_layernorm") * alpha(c["q_lora_rank"])
            q = q @ weights["q_b_proj.weight"].T
        q = q.reshape(tokens, heads, local + shared)
        q = np.concatenate([q[..., :local], turned(q[..., local:])], axis=-1) * factor
        row = x @ weights["kv_a_proj_with_mqa.weight"].T
        latent = self._gated_norm(row[:, :rank], f"{name}.kv_a_layernorm") * alpha(rank)
        array = (latent @ weights["kv_b_proj.weight"].T).reshape(tokens, heads, -1)
        k_shared = np.broadcast_to(turned(row[:, None, rank:]), (tokens, heads, shared))
        out = attend(q, np.concatenate([array[..., :local], k_shared], axis=-1), array[..., local:])
        out = out.reshape(tokens, -1)
        if c.get("gated_attention", True):
            out = out * sigmoid(x @ weights["gate_proj.weight"].T)
        return out @ weights["o_proj.weight"].T

    # Alice AI

    def _mix(self, sources: Sequence[np.ndarray], name: str) -> np.ndarray:
        """Mean of the sources [T, H], weighted by attention over depth."""
        query, weight = self.tensors[f"{name}_proj.weight"][0], self.tensors[f"{name}_norm_weight"]
        scores = np.stack([rms_norm(source, weight, self._eps) @ query for source in sources], axis=-1)
        return (np.stack(sources, axis=-1) * softmax(scores)[:, None]).sum(-1)

    def _blocks(self, embedded: np.ndarray) -> np.ndarray:
        """The mix after the last layer."""
        done: list[np.ndarray] = [embedded]
        partial: np.ndarray | None = None
        for index in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{index}"
            if partial is not None and index % self.config["block_attn_res_block_size"] == 0:
                done, partial = [*done, partial], None
            sources = done if partial is None else [*done, partial]
            inputs = self._mix(sources, f"{layer}.attn_res") if index else embedded
            inputs = rms_norm(inputs, 1 + self.tensors[f"{layer}.input_layernorm.weight"], self._eps)
            if attention := self.below(f"{layer}.self_attn"):
                mixed = gated_attention(inputs, attention, self.config)
            else:
                mixed = self._kimi_delta_attention(f"{layer}.linear_attn", inputs)
            partial = mixed if partial is None else partial + mixed
            inputs = self._mix([*done, partial], f"{layer}.mlp_res")
            inputs = rms_norm(inputs, 1 + self.tensors[f"{layer}.post_attention_layernorm.weight"], self._eps)
            partial = partial + self._alice_experts(f"{layer}.mlp", inputs)
        assert partial is not None, "a model has layers"
        return self._mix([*done, partial], "model.attnres_final.res")

    def _alice_experts(self, name: str, x: np.ndarray) -> np.ndarray:
        weights = self.below(name)
        shared = swiglu(x, below(weights, "shared_expert."), 0.0)
        return routed(x, weights, self.config, 1, 1, 1.0) + shared * sigmoid(x @ weights["shared_expert_gate.weight"].T)

    def _kimi_delta_attention(self, name: str, x: np.ndarray) -> np.ndarray:
        c, weights, tokens = self.config, self.below(name), len(x)
        heads, size = c["linear_num_key_heads"], c["linear_key_head_dim"]
        q, k, v = (part.reshape(tokens, heads, size) for part in convolved(x, weights, c["linear_conv_kernel_dim"]))
        f = x @ weights["f_a_proj.weight"].T @ weights["f_b_proj.weight"].T + weights["dt_bias"]
        decay = np.exp(-np.exp(weights["a_log_bias"])[:, None] * np.logaddexp(0, f.reshape(tokens, heads, size)))
        read = delta_rule(q, k, v, decay, sigmoid(x @ weights["b_proj.weight"].T))
        gate = sigmoid(x @ weights["g_a_proj.weight"].T @ weights["g_b_proj.weight"].T).reshape(read.shape)
        normed = rms_norm(read, weights["o_norm.weight"], self._eps) * gate
        return normed.reshape(tokens, -1) @ weights["o_proj.weight"].T
