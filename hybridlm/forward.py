"""Research access: logits, hidden states and recurrent states, differentiable.

Chunks, lanes and order are as in scoring steps, so bits are equal to `LM.score`; a gradient recomputes values inside
chunks.

More than 300 lines: the pass, its plan and the checks of its arguments.
"""

from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import groupby
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from hybridlm.devices.mesh import MODEL
from hybridlm.devices.placement import Placement
from hybridlm.engine.engine import Engine
from hybridlm.engine.state_order import ShardOrder, shard_orders
from hybridlm.engine.widths import next_width, text_widths
from hybridlm.programs.compilation_cache import use_cache
from hybridlm.programs.jax_settings import fixed_settings
from hybridlm.requests.validation import check_count
from hybridlm.steps.score import token_logits
from hybridlm.steps.structure import Structure
from ir_passes.jaxpr import ir
from models import KV_BLOCK, kv_blocks
from models.decoder.decoder import lane_info
from models.ops.linear import LinearWeight
from models.sharding.devices import varying_like
from models.state.pages import cache_positions
from models.state.shapes import Hooks
from models.state.state import StateArray


@partial(jax.tree_util.register_dataclass, data_fields=["layers"], meta_fields=["position"])
@dataclass(frozen=True)
class SequenceState:
    """State of sequences after some tokens, as a pytree.

    Attributes:
        position: consumed tokens; static, no leaf.
        layers: per layer and branch, with a leading lane axis, on every mesh in the model's order; None for branches
            without state.
    """

    position: int
    layers: Any

    def replace(self, arrays: Mapping[str, Any]) -> "SequenceState":
        """Return this state with some arrays replaced.

        Args:
            arrays: by name, such as `layers[3][0].recurrent`, with the lane axis in front.

        Raises:
            ValueError: unknown names, other shapes or dtypes.
        """
        leaves, tree = jax.tree_util.tree_flatten_with_path(self.layers)
        named = {LAYERS + jax.tree_util.keystr(path): leaf for path, leaf in leaves}
        faults = [f"{name}: no such array; arrays are {', '.join(named)}" for name in arrays if name not in named]
        for name in arrays.keys() & named.keys():
            got, expected = jax.typeof(arrays[name]), jax.typeof(named[name])
            if (got.shape, got.dtype) != (expected.shape, expected.dtype):
                faults.append(f"{name}: expected {expected.str_short()}, got {got.str_short()}")
        if faults:
            raise ValueError("; ".join(faults))
        return SequenceState(self.position, jax.tree.unflatten(tree, (named | dict(arrays)).values()))

    def __repr__(self) -> str:
        return f"SequenceState(position={self.position}\n{_listed(self.layers, LAYERS)})"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


LAYERS = "layers"


def _listed(tree: Any, beginning: str = "") -> str:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    names = [beginning + jax.tree_util.keystr(path) for path, _ in leaves]
    width = max(map(len, names), default=0)
    types = [f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "dtype") else repr(leaf) for _, leaf in leaves]
    return "\n".join(f"  {name:{width}} {kind}" for name, kind in zip(names, types, strict=True))


class ForwardOutput(NamedTuple):
    """Results of `LM.forward`; arrays have a leading lane axis if the tokens had one.

    Attributes:
        logits: float32 [.., T, vocab]; None with `logits=False`.
        hidden_states: float32 [.., T, hidden], after the embedding and each layer, before the final norm.
        states: after the last token; None unless requested.
        logprobs: float32 [.., T-1], of each token except the first, with the bits of `LM.score`; None without tokens.
    """

    logits: Any
    hidden_states: tuple[Array, ...]
    states: SequenceState | None
    logprobs: Any

    def __repr__(self) -> str:
        return f"ForwardOutput(\n{_listed(self._asdict())})"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def check_tokens(tokens: Any, vocab_size: int, placeholders: Collection[int]) -> Any:
    """Check untraced tokens, and return tokens as int32 [N, T].

    Raises:
        TypeError, ValueError: no ids of the vocabulary, or placeholders of images, audio or video.
    """
    if isinstance(tokens, str):
        raise TypeError("tokens: expected token ids, got a text; give lm.tokenizer.encode(text)")
    traced = False
    try:
        tokens = np.asarray(tokens)
    except jax.errors.TracerArrayConversionError:
        traced = True
    except ValueError as error:
        lengths = ", ".join(dict.fromkeys(str(len(row)) for row in tokens if isinstance(row, Sized)))
        raise ValueError(
            f"tokens: expected rows of one length, got lengths {lengths}; call forward for each row, or pad the rows: "
            "a position does not depend on later ones"
        ) from error
    if tokens.ndim not in (1, 2) or tokens.size == 0 or not np.issubdtype(tokens.dtype, np.integer):
        raise TypeError(f"tokens: expected token ids of shape [T] or [N, T], got {tokens.dtype}{tokens.shape}")
    if traced:
        ids = jnp.atleast_2d(tokens)
        ids = ids if ids.dtype.itemsize > 4 else ids.astype(jnp.int32)
        # A negative id would count from the end of the vocabulary.
        return jnp.where((ids >= 0) & (ids < vocab_size), ids, vocab_size).astype(jnp.int32)
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise ValueError(f"tokens: ids must be in [0, {vocab_size}), got {tokens.min()}..{tokens.max()}")
    if (other := np.isin(tokens, list(placeholders))).any():
        token = int(tokens[other][0])
        raise ValueError(f"tokens: {token} stands for an image, audio or video, and only the text model is loaded")
    return np.atleast_2d(tokens).astype(np.int32)


def check_embeddings(embeddings: Any, tokens: Any, hidden_size: int) -> Any:
    """Check embeddings, and return float32 [N, T, hidden]; raises TypeError or ValueError."""
    shape, dtype = np.shape(embeddings), embeddings.dtype
    if len(shape) not in (2, 3) or 0 in shape or dtype != np.float32 or shape[-1] != hidden_size:
        raise TypeError(f"embeddings: expected float32 [T, {hidden_size}] or [N, T, {hidden_size}], got {dtype}{shape}")
    batched = embeddings[None] if len(shape) == 2 else embeddings
    if tokens is not None and batched.shape[:2] != tokens.shape:
        raise ValueError(f"embeddings: expected those of tokens {tokens.shape}, got {batched.shape[:2]}")
    return batched


def check_state(layers: Any, types: Any) -> None:
    """Raise ValueError for a state of another model, shape or dtype."""
    if jax.tree.structure(layers) != jax.tree.structure(types):
        raise ValueError("state: expected the arrays that forward of this model returns, got others")
    faults = []
    for (path, leaf), kind in zip(jax.tree_util.tree_leaves_with_path(layers), jax.tree.leaves(types), strict=True):
        got = jax.typeof(leaf)
        if (got.shape[1:], got.dtype) != (kind.shape[1:], kind.dtype):
            name = LAYERS + jax.tree_util.keystr(path)
            faults.append(
                f"{name}: expected {kind.dtype}{list(kind.shape[1:])} behind the lanes, got {got.str_short()}"
            )
    if faults:
        raise ValueError(f"state: {'; '.join(faults)}")


def check_lengths(lanes: int, count: int, state: SequenceState | None, context: int) -> None:
    """Raise ValueError for tokens beyond the context, or a state with other lanes."""
    start = 0 if state is None else state.position
    if start + count > context:
        raise ValueError(f"tokens: {start} + {count} tokens are more than the context of {context}")
    if state is not None:
        state_lanes = {leaf.shape[0] for leaf in jax.tree.leaves(state.layers)}
        if state_lanes != {lanes}:
            raise ValueError(f"state: has {sorted(state_lanes)} lanes, tokens have {lanes}")


Parameter = Array | LinearWeight
"""An array, or a packed matrix."""


FLOATS = ("float32", "bfloat16", "float16")


def in_order(params: Mapping[str, Parameter], expected: Mapping[str, Parameter]) -> tuple[Parameter, ...]:
    """Return the parameters in the order of `expected`; raises TypeError or ValueError for others."""
    if set(params) != set(expected):
        raise ValueError(f"params: expected the names of lm.params, differ by {set(params) ^ set(expected)}")
    shapes = {name: (list(expected[name].shape), list(getattr(params[name], "shape", ()))) for name in expected}
    if faults := [f"{name}: expected {want}, got {got}" for name, (want, got) in shapes.items() if want != got]:
        raise ValueError(f"params: expected the shapes of lm.params; {'; '.join(faults)}")
    plain = {name: value for name, value in params.items() if not isinstance(value, LinearWeight)}
    if faults := [name for name, value in plain.items() if str(getattr(value, "dtype", type(value))) not in FLOATS]:
        raise TypeError(f"params: expected arrays of {', '.join(FLOATS)}, got others for {', '.join(faults)}")
    if faults := [name for name, value in plain.items() if not _placed_alike(value, expected[name])]:
        raise ValueError(
            "params: expected arrays split over the devices as in lm.params, in the order of their shards "
            f"(docs/devices.md), got others for {', '.join(faults)}; lm.update takes whole arrays"
        )
    return tuple(params[name] for name in expected)


def _placed_alike(value: Any, param: Parameter) -> bool:
    """Return whether the placement of an array fits the order of its parameter."""
    if isinstance(param, LinearWeight) or param.sharding.is_fully_replicated or isinstance(value, ir.Tracer):
        return True
    return isinstance(value, Array) and value.sharding.is_equivalent_to(param.sharding, value.ndim)


class ForwardSharding(NamedTuple):
    """Partition specs of a forward pass over a mesh."""

    mesh: Mesh | AbstractMesh
    params: Any
    layers: Any
    lanes: PartitionSpec
    logits: PartitionSpec


def forward_sharding(placement: Placement, params: Sequence[Parameter], layers: Any) -> ForwardSharding | None:
    if placement.mesh is None:
        return None
    param_specs, layer_specs = jax.tree.map(lambda leaf: leaf.sharding.spec, (params, layers))
    lane = placement.rows_over
    model = MODEL if placement.size(MODEL) > 1 else None
    return ForwardSharding(
        placement.mesh, param_specs, layer_specs, PartitionSpec(lane), PartitionSpec(lane, None, model)
    )


class HiddenStates(Hooks):
    """Hooks that collect the residual stream after the embedding and each layer."""

    def __init__(self) -> None:
        self.found: list[Array] = []

    def residual(self, x: Array, index: int) -> Array:
        self.found.append(x)
        return x


class ForwardSettings(NamedTuple):
    """Static settings of a forward pass.

    Attributes:
        runs: (width, number of consecutive steps).
        lanes: at a time on a device.
        padded: lanes of all devices, a multiple of `lanes`.
        blocks: KV cache blocks to visit; static, for the gradient.
        split: None on one device.
    """

    runs: tuple[tuple[int, int], ...]
    lanes: int
    padded: int
    blocks: int
    types: Any
    keep_logits: bool
    keep_states: bool
    split: ForwardSharding | None


@partial(jax.jit, static_argnums=(0, 6))
def run(
    structure: Structure,
    params: tuple[Parameter, ...],
    tokens: Array | None,
    embeddings: Array | None,
    layers: Any,
    position: Array,
    settings: ForwardSettings,
) -> tuple[Array, Array | None, tuple[Array, ...], Any]:
    """Run all tokens of every lane from a state.

    Args:
        tokens: int32 [N, T]; None with embeddings alone.
        embeddings: float32 [N, T, hidden]; None for the tokens' embeddings.
        layers: None for zeros.
        position: int32 scalar, of the first token.

    Returns:
        Log-probabilities of the next tokens [N, T], logits, hidden states and the state.
    """
    source = tokens if embeddings is None else embeddings
    assert source is not None
    lanes, count = source.shape[:2]
    if tokens is None:
        tokens = jnp.zeros((lanes, count), jnp.int32)
    widths = [width for width, steps in settings.runs for _ in range(steps)]
    full = sum(widths)

    def filled(x: Array, *wide: int) -> Array:
        sizes = zip((settings.padded, *wide), x.shape, strict=False)
        padding = [(0, size - length) for size, length in sizes]
        return jnp.pad(x, padding + [(0, 0)] * (x.ndim - len(padding)))

    following = jnp.pad(tokens[:, 1:], [(0, 0), (0, 1)])
    inputs = [filled(x, full) for x in (tokens, following, *([] if embeddings is None else [embeddings]))]
    if layers is None:
        start = jax.tree.map(lambda array: jnp.zeros(array.shape, array.dtype), settings.types)
    else:
        start = jax.tree.map(filled, layers)
    steps = np.cumsum([0, *widths[:-1]], dtype=np.int32)
    # XLA would simplify masks of constant lengths, and rounding would change.
    lengths = lax.optimization_barrier(jnp.asarray(np.minimum(count - steps, widths).astype(np.int32)))
    step = partial(_device_step, structure, settings)
    if settings.split is not None:
        s = settings.split
        operand_specs = (s.params, [s.lanes] * len(inputs), s.layers, PartitionSpec(), PartitionSpec())
        logits = s.logits if settings.keep_logits else None
        result_specs = (s.lanes, logits, s.lanes, s.layers if settings.keep_states else None)
        step = jax.shard_map(step, mesh=s.mesh, in_specs=operand_specs, out_specs=result_specs, check_vma=True)
    # A gradient runs the pass once for its value, with the same bits, and once for the gradient.
    step = jax.checkpoint(step)
    logprobs, logits, hidden, final_layers = step(params, inputs, start, lengths, position + jnp.asarray(steps))
    cut = partial(jax.tree.map, lambda x: x[:lanes, :count])
    return cut(logprobs), cut(logits), cut(hidden), jax.tree.map(lambda x: x[:lanes], final_layers)


def _device_step(
    structure: Structure,
    settings: ForwardSettings,
    params: tuple[Parameter, ...],
    inputs: list[Array],
    layers: Any,
    lengths: Array,
    positions: Array,
) -> tuple[Array, Array | None, tuple[Array, ...], Any]:
    """Run the lanes of one device, `settings.lanes` at a time, chunk by chunk."""
    model = structure.rebuild(varying_like(params, inputs))
    arrays = structure.arrays.layers
    # If the model has its own mesh, states have the specs of the settings.
    layers = varying_like(layers, inputs, () if settings.split is not None else params)

    def chunk(layers: Any, inputs: tuple[list[Array], Array, Array]) -> tuple[Any, Any]:
        (tokens, targets, *embeddings), length, position = inputs
        hooks = HiddenStates()
        lengths, positions = (jnp.broadcast_to(number, (settings.lanes,)) for number in (length, position))
        info = lane_info(tokens, lengths, positions, settings.blocks)._replace(hooks=hooks)
        hidden, layers = model.run(tokens, info, layers, embeddings[0] if embeddings else None, remat=True)
        logprobs, logits = token_logits(model, hidden, targets, settings.keep_logits)
        return layers, (logprobs, logits, tuple(hooks.found))

    def group(operands: tuple[list[Array], Any]) -> tuple[Any, Any]:
        inputs, initial_layers = operands
        layers = jax.tree.map(partial(_pages_of, blocks=settings.blocks), arrays, initial_layers)
        parts, token, step = list[Any](), 0, 0
        for width, steps in settings.runs:
            span, ends = slice(token, token + width * steps), slice(step, step + steps)
            by_step = [jnp.moveaxis(x[:, span].reshape((x.shape[0], steps, width, *x.shape[2:])), 1, 0) for x in inputs]
            layers, outputs = lax.scan(chunk, layers, (by_step, lengths[ends], positions[ends]))
            parts.append(
                jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape((settings.lanes, -1, *x.shape[3:])), outputs)
            )
            token, step = span.stop, ends.stop
        outputs = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *parts)
        return outputs, jax.tree.map(_with_pages, arrays, initial_layers, layers) if settings.keep_states else None

    if len(inputs[0]) == settings.lanes:
        outputs, layers = group((inputs, layers))
    else:
        grouped = jax.tree.map(lambda x: x.reshape((-1, settings.lanes, *x.shape[1:])), (inputs, layers))
        outputs, layers = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), lax.map(group, grouped))
    return *outputs, layers


def lane_types(arrays: Any, pages: Any, context: int) -> Any:
    """Return the types of a state with a lane's positions in one array.

    Args:
        pages: types with one page per lane.
        context: rounded up to whole pages.
    """

    def typed(array: StateArray, page: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        if array.positions_axis is None:
            return page
        shape = [*page.shape]
        shape[1 + array.positions_axis] = cache_positions(context)
        return jax.ShapeDtypeStruct(tuple(shape), page.dtype, sharding=page.sharding)

    return jax.tree.map(typed, arrays, pages)


def reordered(function: Callable[[ShardOrder, Any], Any], layers: Any, orders: Sequence[ShardOrder | None]) -> Any:
    """Apply a function to the arrays of a state that have an order of shards."""
    leaves, tree = jax.tree.flatten(layers)
    if not leaves:
        return layers
    pairs = zip(orders, leaves, strict=True)
    return jax.tree.unflatten(tree, [leaf if order is None else function(order, leaf) for order, leaf in pairs])


def _whole_type(order: ShardOrder, array: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    shape = list(array.shape)
    shape[1 + order.dim] = order.size
    return jax.ShapeDtypeStruct(tuple(shape), array.dtype)


def _pages_of(array: StateArray, x: Array, blocks: int) -> Array:
    """Return the visited positions of KV caches as pages (`own_pages`)."""
    if array.positions_axis is None:
        return x
    blocks = max(blocks, 2)  # ops/layout: one block
    axis = 1 + array.positions_axis
    visited = lax.slice_in_dim(x, 0, blocks * KV_BLOCK, axis=axis)
    split = visited.reshape((*visited.shape[:axis], blocks, KV_BLOCK, *visited.shape[axis + 1 :]))
    pages = jnp.moveaxis(split, axis, 1).reshape((-1, *split.shape[1:axis], *split.shape[axis + 1 :]))
    return jnp.pad(pages, [(1, 0)] + [(0, 0)] * (pages.ndim - 1))


def _with_pages(array: StateArray, cache: Array, x: Array) -> Array:
    if array.positions_axis is None:
        return x
    axis, lanes = 1 + array.positions_axis, len(cache)
    split = jnp.moveaxis(x[1:].reshape((lanes, -1, *x.shape[1:])), 1, axis)
    visited = split.reshape((*split.shape[:axis], -1, *split.shape[axis + 2 :]))
    return lax.dynamic_update_slice_in_dim(cache, visited, 0, axis)


def _runs(count: int, widths: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return (width, number of consecutive steps) for `count` tokens.

    As in `LM.score`: the last token has a step only if the others are full.
    """
    steps = list(text_widths(count - 1, widths))
    if sum(steps) < count:
        steps.append(next_width(count - sum(steps), widths))
    return tuple((width, len(list(group))) for width, group in groupby(steps))


@partial(jax.jit, static_argnums=(0, 3))
def _head(
    structure: Structure, params: tuple[Parameter, ...], hidden: Array, sharding: ForwardSharding | None
) -> Array:
    """Return the logits of rows: float32 [R, hidden] -> float32 [R, vocab]."""

    def read(params: tuple[Parameter, ...], hidden: Array) -> Array:
        model = structure.rebuild(varying_like(params, hidden))
        return model.logits(model.norm(hidden))

    if sharding is not None:
        specs = sharding.params, PartitionSpec()
        vocabulary = PartitionSpec(None, *sharding.logits[2:])
        read = jax.shard_map(read, mesh=sharding.mesh, in_specs=specs, out_specs=vocabulary, check_vma=True)
    return read(params, hidden)


def head_logits(engine: Engine, params: tuple[Parameter, ...], hidden: Any) -> Array:
    engine.placement.require_one_process("logits")
    size = engine.row_arrays.model.config.residual_size
    shape, dtype = np.shape(hidden), getattr(hidden, "dtype", None)
    if dtype != np.float32 or not shape or shape[-1] != size:
        raise TypeError(f"hidden: expected float32 [.., {size}], got {dtype or type(hidden)}{list(shape)}")
    sharding = forward_sharding(engine.placement, engine.params, None)
    with use_cache(engine.programs.cache), fixed_settings():
        rows = jnp.reshape(hidden, (-1, size))
        return _head(engine.programs.structure, params, rows, sharding).reshape((*shape[:-1], -1))


def forward(
    engine: Engine,
    params: tuple[Parameter, ...],
    tokens: Any,
    embeddings: Any,
    state: SequenceState | None,
    return_states: bool,
    keep_logits: bool,
    chunk: int | None,
) -> ForwardOutput:
    engine.placement.require_one_process("forward")
    if tokens is None and embeddings is None:
        raise TypeError("tokens: expected token ids, or embeddings in their place, got neither")
    widths = engine.widths if chunk is None else (chunk,)
    check_count(widths[0], "chunk")
    has_tokens = tokens is not None
    config = engine.row_arrays.model.config
    token_ids = check_tokens(tokens, engine.vocab_size, config.placeholders) if has_tokens else None
    single = (np.ndim(tokens) if has_tokens else np.ndim(embeddings) - 1) == 1
    if not has_tokens and engine.row_arrays.model.reads_tokens:
        raise TypeError(f"tokens: expected token ids, which layers of {config.family} read, got only embeddings")
    if embeddings is not None:
        embeddings = check_embeddings(embeddings, token_ids, config.hidden_size)
    source: Any = embeddings if token_ids is None else token_ids
    lanes, count = source.shape[:2]
    check_lengths(lanes, count, state, engine.context)
    group = engine.bucket(lanes, engine.prefill_lanes)
    padded = -(-lanes // group) * group
    placement = engine.placement
    arrays, pages = engine.programs.structure.arrays.layers, engine.row_arrays.abstract(padded, padded).layers
    types = lane_types(arrays, pages, engine.context)
    start = 0 if state is None else state.position
    orders = shard_orders(engine)
    if state is not None:
        check_state(state.layers, reordered(_whole_type, types, orders))
    settings = ForwardSettings(
        _runs(count, widths), group // placement.data, padded, kv_blocks(start + count), types, keep_logits,
        return_states, forward_sharding(placement, engine.params, types),
    )  # fmt: skip
    with use_cache(engine.programs.cache), fixed_settings():
        layers = None if state is None else reordered(ShardOrder.in_shards, state.layers, orders)
        operands = (engine.programs.structure, params, token_ids, embeddings, layers, np.int32(start), settings)
        logprobs, logits, hidden_states, layers = run(*operands)
        layers = reordered(ShardOrder.whole, layers, orders)
    final_state = SequenceState(start + count, layers) if return_states else None
    logprobs = logprobs[:, :-1] if has_tokens else None
    if not single:
        return ForwardOutput(logits, hidden_states, final_state, logprobs)
    first = jax.tree.map(lambda x: x[0], (logits, hidden_states, logprobs))
    return ForwardOutput(first[0], first[1], final_state, first[2])
