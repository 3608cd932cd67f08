"""Research access: logits, hidden states and recurrent states of whole sequences, differentiable."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from hybridlm.devices.mesh import MODEL
from hybridlm.devices.placement import Placement
from hybridlm.engine.engine import Engine
from hybridlm.programs.compilation_cache import use_cache
from hybridlm.rows.arrays import zeros
from hybridlm.steps.structure import Structure
from models import kv_blocks
from models.sharding.varying import varying_like
from models.state.shapes import Hooks


class SequenceState(NamedTuple):
    """State of sequences after some tokens: a pytree that can be kept, changed and passed back.

    Attributes:
        position: tokens consumed so far.
        layers: state per layer and branch, with a leading lane axis; None for branches without state.
    """

    position: int
    layers: tuple


class ForwardOutput(NamedTuple):
    """Results of `LM.forward`; arrays have a leading lane axis if the tokens had one.

    Attributes:
        logits: float32 [.., T, vocab].
        hidden_states: float32 [.., T, hidden]: after the embedding and after each layer, before the final norm.
        states: the state after the last token; None unless requested.
    """

    logits: Array
    hidden_states: tuple[Array, ...]
    states: SequenceState | None


def check_tokens(tokens: np.ndarray, state: SequenceState | None, vocab_size: int, context: int) -> np.ndarray:
    """Check tokens of `LM.forward` and return them as [N, T].

    Raises:
        TypeError, ValueError: they are not ids of the vocabulary, or do not fit the context or the state.
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
    """Return the parameters in the order of `names`; raises ValueError unless exactly these are given."""
    if set(params) != set(names):
        raise ValueError(f"params: expected the names of lm.params, differ by {set(params) ^ set(names)}")
    return tuple(params[name] for name in names)


class ForwardSharding(NamedTuple):
    """Partition specs of a forward pass over a mesh.

    Attributes:
        mesh: the devices.
        params, layers: specs of each parameter and of each array of the state.
        lanes, logits: specs of arrays with only a lane axis, and of logits.
    """

    mesh: Mesh | AbstractMesh
    params: tuple[PartitionSpec, ...]
    layers: tuple
    lanes: PartitionSpec
    logits: PartitionSpec


def forward_sharding(placement: Placement, params: Sequence[Array], layers: Any) -> ForwardSharding | None:
    """Return the partition specs of a forward pass, taken from its parameters and its state; None on one device.

    Args:
        placement: the devices.
        params: the loaded parameters.
        layers: ShapeDtypeStructs of the state, whose lanes are sharded or not.
    """
    if placement.mesh is None:
        return None
    held, specs = jax.tree.map(lambda one: one.sharding.spec, (params, layers))
    lane = next((spec[0] for spec in jax.tree.leaves(specs) if len(spec)), None)
    model = MODEL if placement.size(MODEL) > 1 else None
    return ForwardSharding(placement.mesh, held, specs, PartitionSpec(lane), PartitionSpec(lane, None, model))


class HiddenStates(Hooks):
    """Collects the residual stream after the embedding and after each layer.

    Attributes:
        found: those of the layers that have been traced, in order.
    """

    def __init__(self) -> None:
        self.found: list[Array] = []

    def residual(self, x: Array, index: int) -> Array:
        self.found.append(x)
        return x


@partial(jax.jit, static_argnums=(0, 5, 6))
def run(
    structure: Structure,
    params: tuple[Array, ...],
    tokens: Array,
    layers: tuple,
    position: Array,
    blocks: int,
    split: ForwardSharding | None = None,
) -> tuple[Array, tuple[Array, ...], tuple]:
    """Run all tokens of every lane in one step, from the given state.

    Args:
        structure, params: the model.
        tokens: int32 [N, T].
        layers: state before the first token.
        position: int32 scalar, its position.
        blocks: KV cache blocks to visit; static, so that the loop over them has a gradient.
        split: partition specs over a mesh; None on one device.
    """

    def step(
        params: tuple[Array, ...], tokens: Array, layers: tuple, position: Array
    ) -> tuple[Array, tuple[Array, ...], tuple]:
        # Parameters are replicated over devices whose lanes differ.
        model = structure.rebuild(varying_like(params, tokens))
        lanes, count = tokens.shape
        hooks = HiddenStates()
        lengths = jnp.full((lanes,), count, jnp.int32)
        positions = jnp.broadcast_to(position, (lanes,))
        hidden, layers = model(tokens, lengths, positions, layers, blocks, hooks=hooks)
        return model.logits(hidden), tuple(hooks.found), layers

    if split is not None:
        given = (split.params, split.lanes, split.layers, PartitionSpec())
        results = (split.logits, split.lanes, split.layers)
        step = jax.shard_map(step, mesh=split.mesh, in_specs=given, out_specs=results, check_vma=True)
    return step(params, tokens, layers, position)


def forward(
    engine: Engine,
    structure: Structure,
    params: tuple[Array, ...],
    tokens: np.ndarray,
    state: SequenceState | None,
    return_states: bool,
) -> ForwardOutput:
    """See `LM.forward`."""
    engine.placement.require_one_process("forward")
    lanes = check_tokens(tokens, state, engine.vocab_size, engine.context)
    types, placement = engine.row_arrays.abstract(len(lanes), engine.context).layers, engine.placement
    if state is None:
        state = SequenceState(0, zeros(types))
    start = int(state.position)
    end = start + lanes.shape[1]
    split = forward_sharding(placement, engine.params, types)
    operand = jax.device_put(lanes.astype(np.int32), None if split is None else NamedSharding(split.mesh, split.lanes))
    position = placement.put_whole(np.int32(start))
    with use_cache(engine.programs.cache):
        logits, hidden_states, layers = run(structure, params, operand, state.layers, position, kv_blocks(end), split)
    after = SequenceState(end, layers) if return_states else None
    if tokens.ndim == 2:
        return ForwardOutput(logits, hidden_states, after)
    return ForwardOutput(logits[0], tuple(hidden[0] for hidden in hidden_states), after)
