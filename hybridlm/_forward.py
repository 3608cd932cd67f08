"""Research access: logits, hidden states and recurrent states of whole sequences, differentiable."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from hybridlm._steps import Structure
from models import kv_blocks


class SequenceState(NamedTuple):
    """The state of sequences after some tokens: a pytree that can be kept, changed and put back.

    Attributes:
        position: tokens consumed so far.
        layers: per layer and branch, its state with a leading lane axis; None for branches without state.
    """

    position: int
    layers: tuple


class ForwardOutput(NamedTuple):
    """What `LM.forward` returns; arrays have a leading lane axis where the tokens had one.

    Attributes:
        logits: float32 [.., T, vocab].
        hidden_states: float32 [.., T, hidden]: after the embedding and after each layer, before the final norm.
        states: the state after the last token; None where not asked for.
    """

    logits: Array
    hidden_states: tuple[Array, ...]
    states: SequenceState | None


def check_tokens(tokens: np.ndarray, state: SequenceState | None, vocab_size: int, context: int) -> np.ndarray:
    """Tokens of `LM.forward` as [N, T].

    Raises:
        TypeError, ValueError: they are not ids of the vocabulary, do not fit the context or the state.
    """
    if tokens.ndim not in (1, 2) or tokens.size == 0 or not np.issubdtype(tokens.dtype, np.integer):
        raise TypeError(f"tokens: expected token ids of shape [T] or [N, T], got {tokens.dtype}{tokens.shape}")
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise ValueError(f"tokens: ids must be in [0, {vocab_size}), got {tokens.min()}..{tokens.max()}")
    lanes = np.atleast_2d(tokens)
    before = 0 if state is None else int(state.position)
    if before + lanes.shape[1] > context:
        raise ValueError(f"tokens: {before} + {lanes.shape[1]} tokens are more than the context of {context}")
    if state is not None:
        held = {leaf.shape[0] for leaf in jax.tree.leaves(state.layers)}
        if held != {lanes.shape[0]}:
            raise ValueError(f"state: has {sorted(held)} lanes, tokens have {lanes.shape[0]}")
    return lanes


def in_order(params: Mapping[str, Array], names: tuple[str, ...]) -> tuple[Array, ...]:
    """The parameters of these names; raises ValueError if they are not all there, or others are."""
    if set(params) != set(names):
        raise ValueError(f"params: expected the names of lm.params, differ by {set(params) ^ set(names)}")
    return tuple(params[name] for name in names)


@partial(jax.jit, static_argnums=(0, 5))
def run(
    structure: Structure, params: tuple[Array, ...], tokens: Array, layers: tuple, position: Array, blocks: int
) -> tuple[Array, tuple[Array, ...], tuple]:
    """All tokens of every lane in one step, from the given state.

    Args:
        structure, params: the model.
        tokens: int32 [N, T].
        layers: state before the first token.
        position: int32 scalar, its position.
        blocks: blocks of the key/value cache to visit; static, so that the loop over them has a gradient.
    """
    model = structure.rebuild(params)
    lanes, count = tokens.shape
    hidden_states: list[Array] = []
    lengths = jnp.full((lanes,), count, jnp.int32)
    positions = jnp.broadcast_to(position, (lanes,))
    hidden, layers = model(tokens, lengths, positions, layers, blocks, tap=hidden_states.append)
    return model.logits(hidden), tuple(hidden_states), layers


def forward(
    structure: Structure,
    params: tuple[Array, ...],
    tokens: np.ndarray,
    state: SequenceState | None,
    context: int,
    dtype: DTypeLike,
    return_states: bool,
) -> ForwardOutput:
    """See `LM.forward`."""
    model = structure.rebuild(params)
    lanes = check_tokens(tokens, state, model.config.vocab_size, context)
    if state is None:
        layers: Any = model.init_state(lanes.shape[0], context, dtype)
        state = SequenceState(0, layers)
    start = int(state.position)
    end = start + lanes.shape[1]
    operand = jnp.asarray(lanes, jnp.int32)
    logits, hidden_states, layers = run(structure, params, operand, state.layers, jnp.int32(start), kv_blocks(end))
    kept = SequenceState(end, layers) if return_states else None
    if tokens.ndim == 2:
        return ForwardOutput(logits, hidden_states, kept)
    return ForwardOutput(logits[0], tuple(hidden[0] for hidden in hidden_states), kept)
