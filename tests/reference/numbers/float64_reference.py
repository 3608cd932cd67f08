"""Float64 NumPy forward of the Qwen hybrids, from their equations: slow, obvious.

It shares no code with `models` or `hybridlm`. Letters: T tokens,
H hidden size, Hk and Hv key and value heads of the delta net, dk and dv their sizes, D head size of attention.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from float64_checkpoint import Float64Checkpoint, Tensors

FAMILIES = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
"""The families of checkpoints that `Float64Model` reads."""


class DeltaNetOutput(NamedTuple):
    """`hidden` [T, H]; `conv` [K-1, channels], last inputs; `recurrent` [Hv, dk, dv]."""

    hidden: np.ndarray
    conv: np.ndarray
    recurrent: np.ndarray


class ModelOutput(NamedTuple):
    """`logits` [T, V] and, by layer index, the output of every delta-net layer."""

    logits: np.ndarray
    delta_nets: dict[int, DeltaNetOutput]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def convolve(x: np.ndarray, kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the causal convolution of x [T, C] by kernel [C, 1, K] from zero, and the last inputs [K - 1, C]."""
    taps = kernel.shape[-1]
    padded = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
    # The last tap meets the current token.
    return np.sum([padded[tap : tap + len(x)] * kernel[:, 0, tap] for tap in range(taps)], axis=0), padded[len(x) :]


def delta_rule(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, decay: np.ndarray, beta: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Reads [T, heads, dv] of one sequence from the zero state, and its last state.

    q, k [T, key heads, dk], not yet normalised; v [T, heads, dv]; decay [T, heads, dk or 1]; beta [T, heads].
    """
    q, k = (part / np.sqrt((part * part).sum(axis=-1, keepdims=True) + 1e-6) for part in (q, k))
    group = v.shape[1] // k.shape[1]
    state, read = np.zeros((v.shape[1], v.shape[2], k.shape[2])), np.zeros(v.shape)
    for t in range(len(q)):
        for head in range(v.shape[1]):
            key = k[t, head // group]
            saved = decay[t, head] * state[head]
            state[head] = saved + np.outer(beta[t, head] * (v[t, head] - saved @ key), key)
            read[t, head] = state[head] @ q[t, head // group] / np.sqrt(k.shape[2])
    return read, state


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, window: int | None = None) -> np.ndarray:
    """Causal softmax attention of q [T, heads, d], over the last `window` positions; k and v have [T, kv heads]."""
    out, place = np.zeros((*q.shape[:2], v.shape[2])), np.arange(len(q))
    age = place[:, None] - place[None]
    hidden = (age < 0) | (age >= (window or len(q)))
    for head in range(q.shape[1]):
        source = head // (q.shape[1] // k.shape[1])
        scores = np.where(hidden, -np.inf, q[:, head] @ k[:, source].T / np.sqrt(q.shape[2]))
        out[:, head] = softmax(scores) @ v[:, source]
    return out


def gated_delta_net(
    x: np.ndarray, weights: Tensors, config: Mapping[str, Any], gate: Callable[[np.ndarray], np.ndarray] = silu
) -> DeltaNetOutput:
    """Compute one Gated DeltaNet mixer (arXiv:2412.06464) on x [T, H] from zero; `gate` is of its norm.

    `weights` are named as below `linear_attn.`: separate projections of Qwen3.5, or fused projections of
    Qwen3-Next with rows grouped by key head.
    """
    tokens = len(x)
    key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    dk, dv = config["linear_key_head_dim"], config["linear_value_head_dim"]
    group = value_heads // key_heads
    if "in_proj_qkvz.weight" in weights:
        qkvz = (x @ weights["in_proj_qkvz.weight"].T).reshape(tokens, key_heads, 2 * dk + 2 * group * dv)
        q, k, v, z = np.split(qkvz, np.cumsum([dk, dk, group * dv]), axis=-1)
        qkv = np.concatenate([part.reshape(tokens, -1) for part in (q, k, v)], axis=-1)
        ba = (x @ weights["in_proj_ba.weight"].T).reshape(tokens, key_heads, 2 * group)
        b, a = ba[..., :group].reshape(tokens, value_heads), ba[..., group:].reshape(tokens, value_heads)
    else:
        qkv, z, b, a = (x @ weights[f"in_proj_{part}.weight"].T for part in ("qkv", "z", "b", "a"))
    z = z.reshape(tokens, value_heads, dv)

    mixed, conv = convolve(qkv, weights["conv1d.weight"])
    q, k, v = np.split(silu(mixed), [key_heads * dk, 2 * key_heads * dk], axis=-1)
    q, k, v = q.reshape(tokens, key_heads, dk), k.reshape(tokens, key_heads, dk), v.reshape(tokens, value_heads, dv)
    decay = np.exp(-np.exp(weights["A_log"]) * np.logaddexp(0.0, a + weights["dt_bias"]))
    read, state = delta_rule(q, k, v, decay[..., None], sigmoid(b))
    gated = rms_norm(read, weights["norm.weight"], config["rms_norm_eps"]) * gate(z)
    return DeltaNetOutput(gated.reshape(tokens, -1) @ weights["out_proj.weight"].T, conv, state)


def rotate(x: np.ndarray, rotary: int, theta: float) -> np.ndarray:
    """Rotate the first `rotary` entries of x [T, heads, D]; halves form pairs."""
    angles = np.arange(len(x))[:, None] * theta ** (-np.arange(0, rotary, 2) / rotary)
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    first, second, rest = np.split(x, [rotary // 2, rotary], axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def gated_attention(x: np.ndarray, weights: Tensors, config: Mapping[str, Any]) -> np.ndarray:
    """Compute one gated attention mixer on x [T, H]: causal, GQA, partial RoPE, sigmoid gate.

    `weights` are named as below `self_attn.`. Returns [T, H].
    """
    tokens, heads, kv_heads = len(x), config["num_attention_heads"], config["num_key_value_heads"]
    size, eps = config["head_dim"], config["rms_norm_eps"]
    rope = config.get("rope_parameters") or config
    rotary, theta = int(size * rope["partial_rotary_factor"]), rope["rope_theta"]
    q, gate = np.split((x @ weights["q_proj.weight"].T).reshape(tokens, heads, 2 * size), 2, axis=-1)
    k, v = ((x @ weights[f"{part}_proj.weight"].T).reshape(tokens, kv_heads, size) for part in ("k", "v"))
    q = rotate(rms_norm(q, 1.0 + weights["q_norm.weight"], eps), rotary, theta)
    k = rotate(rms_norm(k, 1.0 + weights["k_norm.weight"], eps), rotary, theta)
    return (attend(q, k, v) * sigmoid(gate)).reshape(tokens, -1) @ weights["o_proj.weight"].T


def swiglu(x: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def expert(weights: Tensors, number: int) -> tuple[np.ndarray, ...]:
    """Gate, up and down of an expert, from its own tensors or from those of all experts."""
    if "experts.gate_up_proj" in weights:
        return *np.split(weights["experts.gate_up_proj"][number], 2), weights["experts.down_proj"][number]
    return tuple(weights[f"experts.{number}.{part}_proj.weight"] for part in ("gate", "up", "down"))


def experts(x: np.ndarray, weights: Tensors, config: Mapping[str, Any]) -> np.ndarray:
    """The expert mixture with its shared expert, which may have a gate, on x [T, H], by tokens."""
    out = swiglu(x, *(weights[f"shared_expert.{part}_proj.weight"] for part in ("gate", "up", "down")))
    if "shared_expert_gate.weight" in weights:
        out *= sigmoid(x @ weights["shared_expert_gate.weight"].T)
    scores = softmax(x @ weights["gate.weight"].T)
    for t in range(len(x)):
        chosen = np.argsort(-scores[t], kind="stable")[: config["num_experts_per_tok"]]
        total = scores[t, chosen].sum() if config.get("norm_topk_prob", True) else 1.0
        for e in chosen:
            out[t] += scores[t, e] / total * swiglu(x[t], *expert(weights, e))
    return out


def grouped_experts(
    x: np.ndarray,
    weights: Tensors,
    bias: str,
    groups: tuple[int, int],
    count: int,
    scale: float,
    normalise: bool,
    run: Callable[..., np.ndarray] = swiglu,
) -> np.ndarray:
    """Sigmoid-routed experts of x [T, H], chosen with the bias and weighted without it, token by token.

    Args:
        groups: number of groups, and of the chosen ones, by the sums of their best two.
        count: experts of a token.
        run: an expert, of x [H] and its matrices.
    """
    out, scores = np.zeros_like(x), sigmoid(x @ weights["gate.weight"].T)
    for t in range(len(x)):
        preference = (scores[t] + weights[bias]).reshape(groups[0], -1)
        best = np.argsort(-np.sort(preference, axis=-1)[:, -2:].sum(axis=-1), kind="stable")[: groups[1]]
        preference[[group for group in range(groups[0]) if group not in best]] = -np.inf
        chosen = np.argsort(-preference.reshape(-1), kind="stable")[:count]
        total = scores[t, chosen].sum() + 1e-20 if normalise else 1.0
        for e in chosen:
            out[t] += scale * scores[t, e] / total * run(x[t], *expert(weights, e))
    return out


class Float64Model(Float64Checkpoint):
    """A checkpoint of one of `FAMILIES`."""

    def normed(self, x: np.ndarray, name: str) -> np.ndarray:
        return rms_norm(x, 1.0 + self.tensors[f"{name}.weight"], self.config["rms_norm_eps"])

    def forward(
        self, tokens: Sequence[int], watch: Callable[[int, np.ndarray, np.ndarray], None] | None = None
    ) -> ModelOutput:
        """Return logits of every position; call `watch(layer, mixer_input, mixer_output)` at each mixer."""
        x, delta_nets = self.hidden(tokens, watch)
        return ModelOutput(x @ self.head.T, delta_nets)

    @property
    def head(self) -> np.ndarray:
        """[V, H], the embedding where that is tied to it."""
        return self.tensors["model.embed_tokens.weight" if self.config["tie_word_embeddings"] else "lm_head.weight"]

    def hidden(
        self, tokens: Sequence[int], watch: Callable[[int, np.ndarray, np.ndarray], None] | None = None
    ) -> tuple[np.ndarray, dict[int, DeltaNetOutput]]:
        """Return [T, H] after the final norm, and delta-net states as `forward` does."""
        x, delta_nets = self.tensors["model.embed_tokens.weight"][np.asarray(tokens)], {}
        for index in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{index}"
            inputs = self.normed(x, f"{layer}.input_layernorm")
            if attention := self.below(f"{layer}.self_attn"):
                mixed = gated_attention(inputs, attention, self.config)
            else:
                delta_nets[index] = gated_delta_net(inputs, self.below(f"{layer}.linear_attn"), self.config)
                mixed = delta_nets[index].hidden
            if watch is not None:
                watch(index, inputs, mixed)
            x = self.fed_forward(x + mixed, layer)
        return self.normed(x, "model.norm"), delta_nets

    def fed_forward(self, x: np.ndarray, layer: str) -> np.ndarray:
        """x [T, H] after the second half of a layer."""
        mlp, inputs = self.below(f"{layer}.mlp"), self.normed(x, f"{layer}.post_attention_layernorm")
        if "gate.weight" in mlp:
            return x + experts(inputs, mlp, self.config)
        return x + swiglu(inputs, *(mlp[f"{part}_proj.weight"] for part in ("gate", "up", "down")))

    def mtp(self, tokens: Sequence[int], array: np.ndarray) -> np.ndarray:
        """Run the MTP head at positions 1, 2, ...; return normed [T, H].

        `before` [T, H] holds the hidden states of the tokens before them.
        """
        layer, embedded = "mtp.layers.0", self.tensors["model.embed_tokens.weight"][np.asarray(tokens)]
        pair = (self.normed(embedded, "mtp.pre_fc_norm_embedding"), self.normed(array, "mtp.pre_fc_norm_hidden"))
        x = np.concatenate(pair, axis=-1) @ self.tensors["mtp.fc.weight"].T
        inputs = self.normed(x, f"{layer}.input_layernorm")
        x = self.fed_forward(x + gated_attention(inputs, self.below(f"{layer}.self_attn"), self.config), layer)
        return self.normed(x, "mtp.norm")

    def mtp_logits(self, tokens: Sequence[int]) -> np.ndarray:
        """[T-1, V]: the head's logits after each token but the first."""
        return self.mtp(tokens[1:], self.hidden(tokens)[0][:-1]) @ self.head.T

    def mtp_drafts(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return the head's greedy drafts, each from its own output for the one before.

        `tokens` are those that the model has run and the one that it sampled after them.
        """
        initial, drafts = self.hidden(tokens[:-1])[0], list(tokens)
        for _ in range(count):
            final = self.mtp(drafts[1:], initial)
            initial = np.concatenate([initial, final[-1:]])
            drafts.append(int((final[-1] @ self.head.T).argmax()))
        return drafts[len(tokens) :]
