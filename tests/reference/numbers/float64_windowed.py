"""Float64 NumPy forward of LFM3 and Lara-4-Mini, with attention over a window: slow, obvious, one sequence.

Written from the modules of transformers. It shares no code with `models` or `hybridlm`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from float64_checkpoint import Float64Checkpoint, Tensors
from float64_reference import attend, convolve, experts, gated_delta_net, rms_norm, sigmoid, swiglu

FAMILIES = ("lfm3", "lara_mini")
"""The families of checkpoints that `Float64WindowedModel` reads."""


def frequencies(rope: Mapping[str, Any], size: int) -> np.ndarray:
    """Radians per position of each pair of a head; "proportional" leaves the last pairs in place."""
    pairs = np.arange(size // 2)
    plain = rope["rope_theta"] ** (-2.0 * pairs / size) / rope.get("factor", 1.0)
    if rope["rope_type"] == "default":
        return plain
    assert rope["rope_type"] == "proportional"
    return np.where(pairs < int(rope.get("partial_rotary_factor", 1.0) * size // 2), plain, 0.0)


def turned(x: np.ndarray, radians: np.ndarray) -> np.ndarray:
    """Rotate x [T, heads, D] by positions; entries of the halves form pairs, as complex numbers."""
    half = x.shape[-1] // 2
    pairs = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * np.arange(len(x))[:, None] * radians)[:, None]
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


def attention(
    x: np.ndarray, weights: Tensors, config: Mapping[str, Any], eps: float, kind: str, rope: Mapping[str, Any] | None
) -> np.ndarray:
    """Compute one attention layer on the normalised x [T, H]; `kind` of `layer_types`, without positions if no RoPE."""
    tokens, size = len(x), config["head_dim"]
    q, k, v = ((x @ weights[f"{part}_proj.weight"].T).reshape(tokens, -1, size) for part in "qkv")
    q, k = rms_norm(q, weights["q_norm.weight"], eps), rms_norm(k, weights["k_norm.weight"], eps)
    if rope is not None:
        q, k = (turned(part, frequencies(rope, size)) for part in (q, k))
    out = attend(q, k, v, config["sliding_window"] if kind == "sliding_attention" else None)
    if "gate_proj.weight" in weights:
        out *= sigmoid(x @ weights["gate_proj.weight"].T)[..., None]
    return out.reshape(tokens, -1) @ weights["o_proj.weight"].T


def short_conv(x: np.ndarray, weights: Tensors) -> np.ndarray:
    """Compute one gated short convolution on the normalised x [T, H]."""
    b, c, u = np.split(x @ weights["in_proj.weight"].T, 3, axis=-1)
    return (c * convolve(b * u, weights["conv.weight"])[0]) @ weights["out_proj.weight"].T


class Float64WindowedModel(Float64Checkpoint):
    """A checkpoint of one of `FAMILIES`."""

    def forward(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits [T, V] of every position."""
        lfm = self.config["model_type"] == "lfm3"
        embedding = self.tensors["model.embed_tokens.weight"]
        x = embedding[np.asarray(tokens)]
        for index, kind in enumerate(self.config["layer_types"]):
            x = (self._lfm_layer if lfm else self._lara_layer)(f"model.layers.{index}", kind, x)
        x = self._norm(x, "model.embedding_norm" if lfm else "model.norm")
        return x @ (embedding if self.config["tie_word_embeddings"] else self.tensors["lm_head.weight"]).T

    @property
    def _eps(self) -> float:
        return self.config["norm_eps" if "norm_eps" in self.config else "rms_norm_eps"]

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return rms_norm(x, self.tensors[f"{name}.weight"], self._eps)

    def _lfm_layer(self, layer: str, kind: str, x: np.ndarray) -> np.ndarray:
        inputs = self._norm(x, f"{layer}.operator_norm")
        if kind == "conv":
            mixed = short_conv(inputs, self.below(f"{layer}.conv"))
        else:
            rope = self.config["rope_parameters"][kind]
            mixed = attention(inputs, self.below(f"{layer}.self_attn"), self.config, self._eps, kind, rope)
        sandwich = self.config["use_sandwich_norm"]
        x = x + (self._norm(mixed, f"{layer}.post_operator_norm") if sandwich else mixed)
        weights = self.below(f"{layer}.feed_forward")
        out = swiglu(self._norm(x, f"{layer}.ffn_norm"), *(weights[f"w{i}.weight"] for i in (1, 3, 2)))
        return x + (self._norm(out, f"{layer}.post_ffn_norm") if sandwich else out)

    def _lara_layer(self, layer: str, kind: str, x: np.ndarray) -> np.ndarray:
        inputs = self._norm(x, f"{layer}.input_layernorm")
        if kind == "linear_attention":
            mixed = gated_delta_net(inputs, self._delta_net(f"{layer}.linear_attn"), self.config).hidden
        else:
            rope = self.config["rope_parameters"] if kind == "sliding_attention" else None
            mixed = attention(inputs, self.below(f"{layer}.self_attn"), self.config, self._eps, kind, rope)
        x = x + mixed
        inputs = self._norm(x, f"{layer}.post_attention_layernorm")
        return x + experts(inputs, self.below(f"{layer}.mlp"), self.config)

    def _delta_net(self, name: str) -> dict[str, np.ndarray]:
        """Tensors of a Gated DeltaNet by Qwen3.5's names; the file joins the projections [q | k | v | z | b | a]."""
        tensors, c = self.below(name), self.config
        heads, values = c["linear_num_value_heads"], c["linear_num_value_heads"] * c["linear_value_head_dim"]
        keys = 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"]
        parts = np.split(tensors.pop("in_proj.weight"), np.cumsum([keys + values, values, heads]))
        names = (f"in_proj_{part}.weight" for part in ("qkv", "z", "b", "a"))
        return tensors | dict(zip(names, parts, strict=True)) | {"norm.weight": tensors["out_norm.weight"]}
