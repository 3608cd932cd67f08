"""Modules and models with given parameters; random initial ones are never computed."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from flax import nnx

from models import WeightSource

M = TypeVar("M", bound=nnx.Module)
ONE_LAYER: dict[str, Any] = {
    "model_type": "qwen3_5_text", "vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 1, "head_dim": 8,
    "num_attention_heads": 1, "num_key_value_heads": 1, "linear_num_key_heads": 1, "linear_num_value_heads": 1,
    "intermediate_size": 8, "linear_key_head_dim": 4, "linear_value_head_dim": 4,
}  # fmt: skip
"""Config of a model that is its head and little else."""


def filled(build: Callable[[], M], value: Callable[[str, tuple[int, ...]], np.ndarray]) -> M:
    """The module that `build` makes, with `value(dotted name, shape)` as its parameters, all of them."""
    graph, state = nnx.split(nnx.eval_shape(build))
    filled = []
    for path, variable in nnx.to_flat_state(state):
        array = value(".".join(map(str, path)), variable.shape)
        assert array.shape == variable.shape and array.dtype == variable.dtype, path
        filled.append((path, variable.replace(jnp.asarray(array))))
    return nnx.merge(graph, nnx.from_flat_state(filled))


def random_values(seed: int, low: float = -1.0, high: float = 1.0) -> Callable[[str, tuple[int, ...]], np.ndarray]:
    """Return values for `filled`: uniform vectors, normal matrices that keep the size of their operand."""
    rng = np.random.default_rng(seed)

    def value(name: str, shape: tuple[int, ...]) -> np.ndarray:
        array = rng.uniform(low, high, shape) if len(shape) == 1 else rng.normal(size=shape) / shape[-1] ** 0.5
        return array.astype(np.float32)

    return value


@contextmanager
def changed_parameter(lm: Any, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """Run with one parameter of a loaded model changed."""
    clean, where = lm.engine.params, list(lm.params).index(name)
    lm.engine.params = tuple(change(param) if i == where else param for i, param in enumerate(clean))
    try:
        yield
    finally:
        lm.engine.params = clean


def nan_token(lm: Any, token: int = 9) -> AbstractContextManager[None]:
    """Run with NaN as the embedding of a token."""
    return changed_parameter(lm, "embed_tokens", lambda table: table.at[token].set(jnp.nan))


def made(source: WeightSource, shape: tuple[int, ...], tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Build a parameter in the first tensor's dtype, writing every entry once."""
    result = np.empty(shape, tensors[next(iter(source.shapes))].dtype)
    written = np.zeros(shape, int)
    for piece in source.pieces((), shape):
        place = (*piece.place, ...)
        output = source.take(tensors[piece.name], piece.taken)
        assert output.shape == result[place].shape, piece
        result[place] = output
        written[place] += 1
    assert (written == 1).all()
    return result
