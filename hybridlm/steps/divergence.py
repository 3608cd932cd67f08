"""Stateless step that compares two models' distributions, and its contract.

Only one block's logits are in memory.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32

from hybridlm.sampling.vocab_parallel import Vocabulary
from hybridlm.steps.score import in_blocks
from hybridlm.steps.structure import Structure
from ir_passes import Lane, LaneContract, Shared
from models.ops.layout import materialize

MAX_SERIES = 0.25
"""Largest argument of the series; the closed form cancels there."""


class Divergences(NamedTuple):
    """Outputs per position, in nats; meaningless at padding.

    Attributes:
        kl: KL(P || Q), P of the first model.
        js: Jensen-Shannon divergence, at most log 2.
    """

    kl: Float32[Array, "lane token"]
    reverse_kl: Float32[Array, "lane token"]
    js: Float32[Array, "lane token"]
    same_top: Bool[Array, "lane token"]


DIVERGENCE_CONTRACT = LaneContract(inputs=(Shared(), Shared(), Lane(), Lane()), outputs=(Lane(),))


def divergence_step(first: Structure, second: Structure) -> Callable[..., tuple[Divergences]]:
    def step(
        params: tuple[Any, ...],
        second_params: tuple[Any, ...],
        hidden: Float32[Array, "lane token size"],
        second_hidden: Float32[Array, "lane token width"],
    ) -> tuple[Divergences]:
        first_model, second_model = first.rebuild(params), second.rebuild(second_params)
        vocabulary = Vocabulary.of(first_model.config)

        def compare_block(inputs: tuple[Array, Array]) -> Divergences:
            lanes, count = inputs[0].shape[:2]
            parts = (model.logits(part) for model, part in zip((first_model, second_model), inputs, strict=True))
            logits = [materialize(each.reshape((lanes * count, -1))) for each in parts]
            totals = [vocabulary.log_total(each) for each in logits]

            def summed(term: Callable[[Array, Array], Array]) -> Array:
                def of_slice(cut: Callable[[Array], Array]) -> Array:
                    return term(cut(logits[0]) - totals[0], cut(logits[1]) - totals[1])

                return vocabulary.sum(logits[0].shape, of_slice).reshape((lanes, count))

            agreement = vocabulary.same_most_likely(*logits)
            return Divergences(
                summed(kl_terms),
                summed(lambda p, q: kl_terms(q, p)),
                summed(js_terms),
                agreement.reshape((lanes, count)),
            )

        return (in_blocks(compare_block, (hidden, second_hidden), vocabulary.shard_size),)

    return step


def kl_terms(log_p: Float32[Array, "row slice"], log_q: Float32[Array, "row slice"]) -> Float32[Array, "row slice"]:
    """Return the terms of KL(P || Q), at least 0.

    A term is `p * log(p/q) - p + q`: since both sum to 1, rounding of a normalization cancels to second order.
    """
    p, q, d = jnp.exp(log_p), jnp.exp(log_q), log_p - log_q
    small = jnp.abs(d) < MAX_SERIES
    near = jnp.where(small, d, 0.0)
    # d - 1 + exp(-d)
    series = near * near * (1 / 2 - near * (1 / 6 - near * (1 / 24 - near * (1 / 120 - near / 720))))
    # Where p is 0 and d infinite, their product is no number.
    direct = jnp.where(p == 0, q, p * jnp.where(small | (p == 0), 0.0, d) - p + q)
    return jnp.where(small, p * series, direct)


def js_terms(log_p: Float32[Array, "row slice"], log_q: Float32[Array, "row slice"]) -> Float32[Array, "row slice"]:
    """Return the terms of the Jensen-Shannon divergence.

    Half of p * log(p / m) + q * log(q / m) with m = (p + q) / 2; with t = (p - q) / (p + q), half of m * ((1 + t) *
    log(1 + t) + (1 - t) * log(1 - t)).
    """
    p, q = jnp.exp(log_p), jnp.exp(log_q)
    mean = 0.5 * (p + q)
    t = jnp.where(jnp.isneginf(log_p) & jnp.isneginf(log_q), 0.0, jnp.tanh(0.5 * (log_p - log_q)))
    small = jnp.abs(t) < MAX_SERIES
    square = jnp.where(small, t * t, 0.0)
    series = square * (1 + square * (1 / 6 + square * (1 / 15 + square * (1 / 28 + square / 45))))
    direct = _x_log_x(1 + t) + _x_log_x(1 - t)
    return 0.5 * mean * jnp.where(small, series, direct)


def _x_log_x(x: Array) -> Array:
    return x * jnp.log(jnp.where(x == 0, 1.0, x))
