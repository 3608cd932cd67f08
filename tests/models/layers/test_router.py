"""MoE router against float64 NumPy, expert by expert, with every option."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import filled
from flax import nnx

from models.layers.router import RouterConfig

HIDDEN, ROWS = 10, 40
CASES = {
    "softmax": RouterConfig(7, 3),
    "softmax, normalised": RouterConfig(7, 3, normalise=True),
    "softmax of the chosen": RouterConfig(7, 3, scores="softmax_of_chosen"),
    "sigmoid": RouterConfig(7, 2, scores="sigmoid"),
    "sigmoid with correction": RouterConfig(9, 4, "sigmoid", bias=True, normalise=True, epsilon=1e-6, scale=2.5),
    "a sum that its epsilon changes": RouterConfig(9, 1, "sigmoid", bias=True, normalise=True, epsilon=0.5),
    "groups": RouterConfig(12, 3, "sigmoid", groups=4, groups_kept=2, normalise=True, epsilon=1e-20, scale=2.5),
    "groups with correction": RouterConfig(12, 4, "sigmoid", bias=True, groups=3, groups_kept=2, scale=0.5),
    "every expert": RouterConfig(5, 5, normalise=True),
}


def expected(config: RouterConfig, weight: np.ndarray, bias: np.ndarray | None, row: np.ndarray) -> dict[int, float]:
    """Weight of each chosen expert."""
    c, logits = config, weight.astype(np.float64) @ row.astype(np.float64)
    score = logits
    if c.scores == "sigmoid":
        score = 1 / (1 + np.exp(-logits))
    elif c.scores == "softmax":
        score = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    preference = score + (0 if bias is None else bias)
    groups = np.split(np.arange(c.experts), c.groups)
    worth = [np.sort(preference[group])[-2:].sum() for group in groups]
    allowed = np.concatenate([groups[g] for g in np.argsort(worth)[-c.groups_kept :]])
    chosen = sorted(allowed, key=lambda expert: -preference[expert])[: c.per_token]
    weights = score[chosen]
    if c.scores == "softmax_of_chosen":
        weights = np.exp(weights - weights.max()) / np.exp(weights - weights.max()).sum()
    if c.normalise:
        weights = weights / (weights.sum() + c.epsilon)
    return dict(zip(map(int, chosen), c.scale * weights, strict=True))


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_choices_and_weights(name: str, dtype: jax.typing.DTypeLike) -> None:
    config, rng = CASES[name], np.random.default_rng(0)
    values = {
        "weight": rng.normal(size=(config.experts, HIDDEN)).astype(np.float32),
        "bias": rng.normal(size=config.experts).astype(np.float32),
    }
    router = filled(lambda: config.build(HIDDEN, nnx.Rngs(0)), lambda path, shape: values[path])
    stored = jnp.asarray(values["weight"], dtype)
    router.weight = nnx.Param(stored)
    rows = rng.normal(size=(ROWS, HIDDEN)).astype(np.float32)
    weights, experts = jax.device_get(jax.jit(lambda router, rows: router(rows))(router, rows))
    assert weights.dtype == np.float32 and experts.dtype == np.int32
    bias = values["bias"].astype(np.float64) if config.bias else None
    for row, found_weights, result in zip(rows, weights, experts, strict=True):
        want = expected(config, np.asarray(stored.astype(jnp.float32)), bias, row)
        assert set(result.tolist()) == want.keys()
        np.testing.assert_allclose(found_weights, [want[expert] for expert in result.tolist()], rtol=1e-5, atol=1e-6)


def test_a_bias_moves_the_choice_but_not_the_weight() -> None:
    config = RouterConfig(3, 1, "sigmoid", bias=True)
    values = {"weight": np.eye(3, dtype=np.float32), "bias": np.array([0.0, 0.0, 10.0], np.float32)}
    router = filled(lambda: config.build(3, nnx.Rngs(0)), lambda path, shape: values[path])
    weight, expert = router(jnp.array([[5.0, 0.0, 0.0]]))
    assert expert.tolist() == [[2]] and weight.tolist() == [[0.5]]
