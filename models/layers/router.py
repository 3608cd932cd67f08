"""MoE router: the experts of each token and their weights."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jaxtyping import Float32, Int32

from models.layers.initial import matrix
from models.ops.linear import linear


@dataclass(frozen=True)
class RouterConfig:
    """Options of a router; the defaults are softmax scores and top-k.

    Attributes:
        scores: "softmax" over all experts, "sigmoid" of each, or "softmax_of_chosen" over the top-k logits.
        bias: choose by score plus a learned correction (auxiliary-loss-free balancing, arXiv:2408.15664), absent from
            the weights.
        groups, groups_kept: equal groups (`n_group`); top-k chooses from the `groups_kept` (`topk_group`) with the
            largest sum of two best experts (DeepSeek-V3, arXiv:2412.19437).
        normalise: divide the chosen scores by their sum plus `epsilon`.
        scale: `routed_scaling_factor`.
    """

    experts: int
    per_token: int
    scores: Literal["softmax", "sigmoid", "softmax_of_chosen"] = "softmax"
    bias: bool = False
    groups: int = 1
    groups_kept: int = 1
    normalise: bool = False
    epsilon: float = 0.0
    scale: float = 1.0

    def build(self, hidden: int, rngs: nnx.Rngs) -> "Router":
        return Router(self, hidden, rngs)


class Router(nnx.Module):
    """Linear scores and top-k, in float32 for every dtype: rounding would change experts."""

    def __init__(self, config: RouterConfig, hidden: int, rngs: nnx.Rngs):
        self.config = config
        self.weight = matrix(rngs, config.experts, hidden)
        self.bias = nnx.Param(jnp.zeros((config.experts,), jnp.float32)) if config.bias else None

    def __call__(
        self, rows: Float32[Array, "row hidden"]
    ) -> tuple[Float32[Array, "row choice"], Int32[Array, "row choice"]]:
        """Return each row's weights and experts, best first."""
        c = self.config
        logits = linear(rows, self.weight[...].astype(jnp.float32))
        if c.scores == "softmax_of_chosen":
            score = logits
        else:
            score = jax.nn.softmax(logits, axis=-1) if c.scores == "softmax" else jax.nn.sigmoid(logits)
        preference = score if self.bias is None else score + self.bias[...][None]
        if c.groups > 1:
            preference = self._best_groups(preference)
        weight, expert = lax.top_k(preference, c.per_token)
        if preference is not score:
            weight = jnp.take_along_axis(score, expert, axis=-1, mode="fill")
        if c.scores == "softmax_of_chosen":
            weight = jax.nn.softmax(weight, axis=-1)
        if c.normalise:
            total = jnp.sum(weight, axis=-1, keepdims=True)
            weight = weight / (total + c.epsilon if c.epsilon else total)
        return (weight if c.scale == 1.0 else weight * c.scale), expert.astype(jnp.int32)

    def _best_groups(self, preference: Float32[Array, "row expert"]) -> Float32[Array, "row expert"]:
        """Return experts' preferences, minus infinity outside the best groups."""
        c = self.config
        grouped = preference.reshape((-1, c.groups, c.experts // c.groups))
        best = jnp.sum(lax.top_k(grouped, 2)[0], axis=-1)
        _, group = lax.top_k(best, c.groups_kept)
        mask = jnp.any(group[:, :, None] == jnp.arange(c.groups, dtype=group.dtype)[None, None], axis=1)
        return jnp.where(mask[:, :, None], grouped, -jnp.inf).reshape(preference.shape)
