"""Float64 NumPy forward of GigaChat3.5 and Alice AI: slow, obvious, one sequence.

Written from the model files that their authors sent to vLLM, the code that GigaChat was trained with, and
arXiv:2603.15031. It shares no code with `models` or `hybridlm`.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from float64_checkpoint import Float64Checkpoint, Tensors
from float64_delta import convolved
from float64_reference import (
    attend,
    delta_rule,
    gated_attention,
    gated_delta_net,
    grouped_experts,
    rms_norm,
    sigmoid,
    silu,
    softmax,
    swiglu,
)

FAMILIES = ("gigachat3_5", "alice_ai")
"""The families of checkpoints that `Float64GatedModel` reads."""


def bounded(x: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray, *, limit: float) -> np.ndarray:
    """A feed-forward layer; `limit` bounds its inner inputs, 0 does not."""
    bound = limit or np.inf
    return (silu(np.minimum(x @ gate.T, bound)) * np.clip(x @ up.T, -bound, bound)) @ down.T


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
        run = functools.partial(bounded, limit=c.get("swiglu_limit") or 0.0)
        prefix = "shared_experts." if "gate.weight" in weights else ""
        out = run(x, *(weights[f"{prefix}{part}_proj.weight"] for part in ("gate", "up", "down")))
        if not prefix:
            return out
        groups, scale = (c["n_group"], c["topk_group"]), c["routed_scaling_factor"]
        return out + self._routed(x, weights, groups, scale, run)

    def _routed(
        self, x: np.ndarray, weights: Tensors, groups: tuple[int, int], scale: float, run: Callable[..., np.ndarray]
    ) -> np.ndarray:
        count, normalise = self.config["num_experts_per_tok"], self.config.get("norm_topk_prob", True)
        return grouped_experts(x, weights, "gate.e_score_correction_bias", groups, count, scale, normalise, run)

    def _delta_net(self, name: str, x: np.ndarray) -> np.ndarray:
        """Gated DeltaNet with fused projections by key head, and a factor times a sigmoid as the gate of its norm."""
        c, weights = self.config, self.below(name)
        norm = weights["norm.weight"] + c["linear_gating_type"].endswith("zero_centered")
        fields = {**c, "rms_norm_eps": c.get("linear_attn_o_norm_eps") or self._eps}
        gate = lambda z: c["linear_sigmoid_gate_scale"] * sigmoid(z)
        return gated_delta_net(x, weights | {"norm.weight": norm}, fields, gate).hidden

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
        run = functools.partial(bounded, limit=self.config.get("swiglu_limit") or 0.0)
        shared = swiglu(x, *(weights[f"shared_expert.{part}_proj.weight"] for part in ("gate", "up", "down")))
        gate = sigmoid(x @ weights["shared_expert_gate.weight"].T)
        return self._routed(x, weights, (1, 1), 1.0, run) + shared * gate

    def _kimi_delta_attention(self, name: str, x: np.ndarray) -> np.ndarray:
        c, weights, tokens = self.config, self.below(name), len(x)
        heads, size = c["linear_num_key_heads"], c["linear_key_head_dim"]
        q, k, v = (part.reshape(tokens, heads, size) for part in convolved(x, weights))
        f = x @ weights["f_a_proj.weight"].T @ weights["f_b_proj.weight"].T + weights["dt_bias"]
        decay = np.exp(-np.exp(weights["a_log_bias"])[:, None] * np.logaddexp(0, f.reshape(tokens, heads, size)))
        read, _ = delta_rule(q, k, v, decay, sigmoid(x @ weights["b_proj.weight"].T))
        gate = sigmoid(x @ weights["g_a_proj.weight"].T @ weights["g_b_proj.weight"].T).reshape(read.shape)
        normed = rms_norm(read, weights["o_norm.weight"], self._eps) * gate
        return normed.reshape(tokens, -1) @ weights["o_proj.weight"].T
