"""Decoder: embedding, residual layers, final norm and vocabulary head.

More than 300 lines: a decoder, its layers and their branches with their configs.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float32, Int32

from models.decoder.streams import SourceMix, StreamMixer, StreamsConfig, over_streams
from models.decoder.traced_once import one_pass, traced_once
from models.layers.activations import scaled
from models.layers.embedding import embedding_rows
from models.layers.initial import matrix, sharded_dims_of
from models.layers.norms import NormConfig
from models.ops.layout import materialize
from models.ops.linear import linear
from models.sharding.devices import MODEL, SINGLE_DEVICE, Devices, all_reduce, local_rows
from models.sharding.shard_sizes import ShardedSize, shard_configs
from models.sharding.sharded_dim import Segment, ShardedDim, shard_outputs
from models.state.pages import Pages
from models.state.rows import Slots
from models.state.shapes import Activations, Hooks, LaneInfo, Lengths, Positions, Stream, TokenMask, Tokens
from models.state.state import Stateful, StateSize, state_size


@runtime_checkable
class BranchConfig(Protocol):
    """Config of a mixer or feed-forward layer."""

    def shard(self, devices: Devices) -> "BranchConfig":
        """Return the config of one device's shard; raises ShardingError if sizes do not divide."""
        ...

    def build(self, hidden: int, rngs: nnx.Rngs) -> Any:
        """Build the layer, for a residual stream of width `hidden`."""
        ...


@dataclass(frozen=True)
class Wrapped:
    """A branch with another norm or sum, computed by `Branch`."""

    inner: BranchConfig

    def shard(self, devices: Devices) -> "Wrapped":
        return replace(self, inner=self.inner.shard(devices))

    def build(self, hidden: int, rngs: nnx.Rngs) -> Any:
        return self.inner.build(hidden, rngs)


@dataclass(frozen=True)
class PostNorm(Wrapped):
    """A branch `x += norm(inner(x))`, or with `in_front` `x += norm(inner(norm(x)))` (sandwich norm)."""

    in_front: bool = False


@dataclass(frozen=True)
class NormedResidual(Wrapped):
    """A branch on a normed stream.

    It computes `x = stream * norm(x) + output * inner(norm(x))`.
    """

    stream: float = 1.0
    output: float = 1.0


@dataclass(frozen=True)
class BlockResidual(Wrapped):
    """A branch on a stream of sources (Block Attention Residuals, arXiv:2603.15031).

    Sources are the embedding and, for each block of layers, the sum of its outputs. The input is a mix of all
    (`SourceMix`), the output is added to the last.

    Attributes:
        begins: the first branch of a block, with an output that is a new source.
        mixes: False for the first branch of the model, which reads the embedding.
    """

    begins: bool
    mixes: bool


@dataclass(frozen=True)
class DecoderConfig:
    """Config of a decoder.

    Attributes:
        vocab_size, hidden_size, max_position_embeddings, eps, tied: as in config.json.
        layers: per layer, its residual branches in order: `x += branch(norm(x))`, or as in `PostNorm`,
            `NormedResidual` or, in all layers, `BlockResidual`.
        norm_offset, norm_gate: of all norms, as `offset` and `gate` of `NormConfig`.
        eos_token_ids: tokens that end a completion.
        dtype: of the weights in config.json ("bfloat16", "float16" or "float32"), for callers without a checkpoint.
        embedding_multiplier, residual_multiplier, logits_multiplier: factors on the embedding, on the output of every
            branch, and on the logits.
        head: branches of the multi-token-prediction head's layer (`models.decoder.mtp`), None without one.
        placeholders: ids of tokens with embeddings from another part of the checkpoint, for example of images.
        streams: several residual streams, which begin with equal embeddings; None for one.
        devices: of the sharded model; all sizes are local.
    """

    family: str
    vocab_size: int
    hidden_size: int
    max_position_embeddings: int
    layers: tuple[tuple[BranchConfig, ...], ...]
    eps: float
    norm_offset: float
    tied: bool
    eos_token_ids: tuple[int, ...]
    dtype: str
    unknown_keys: tuple[str, ...]
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_multiplier: float = 1.0
    head: tuple[BranchConfig, ...] | None = None
    placeholders: tuple[int, ...] = ()
    norm_gate: float | None = None
    streams: StreamsConfig | None = None
    devices: Devices = SINGLE_DEVICE

    @property
    def norm(self) -> NormConfig:
        """Options of all norms."""
        return NormConfig(self.eps, self.norm_offset, self.norm_gate)

    @property
    def residual_size(self) -> int:
        """Width of all residual streams."""
        return self.hidden_size * (1 if self.streams is None else self.streams.count)

    @property
    def mixes_sources(self) -> bool:
        """Whether the stream has the sources of `BlockResidual`."""
        return any(isinstance(branch, BlockResidual) for layer in self.layers for branch in layer)

    @property
    def num_layers(self) -> int:
        """Number of layers, without the MTP head."""
        return len(self.layers)

    def first(self, kinds: type | tuple[type, ...]) -> Any:
        """Return the first mixer or feed-forward layer with a config of some kinds, or None."""
        return next((branch for layer in self.layers for branch in layer if isinstance(branch, kinds)), None)

    def shard(self, devices: Devices) -> "DecoderConfig":
        """Return each device's config (tensor and expert parallel).

        Raises:
            ShardingError: with every indivisible size, and the possible numbers of devices.
            ValueError: this config is of a shard already.
        """
        if self.devices.sharded:
            raise ValueError(f"expected the config of a whole model, got the config of a shard of {self.devices}")
        vocabulary = ShardedSize("DecoderConfig.vocab_size", self.vocab_size)
        branches = dict.fromkeys(branch for layer in (*self.layers, self.head or ()) for branch in layer)
        local = shard_configs(branches, devices, (vocabulary,))
        return replace(
            self,
            vocab_size=self.vocab_size // devices.model,
            layers=tuple(tuple(local[branch] for branch in layer) for layer in self.layers),
            head=None if self.head is None else tuple(local[branch] for branch in self.head),
            devices=devices,
        )


class Branch(nnx.Module):
    """Residual branch `x + inner(norm(x))`, or as in its config's wrapper; no norm for `norms_input`.

    With several streams the norm is a `StreamMixer`; a layer with `norms_input` adds to all streams.
    """

    def __init__(self, config: DecoderConfig, inner: BranchConfig, rngs: nnx.Rngs):
        self.inner = inner.build(config.hidden_size, rngs)
        post = inner if isinstance(inner, PostNorm) else None
        in_front = not self.inner.norms_input if post is None else post.in_front
        norm = partial(config.norm.build, config.hidden_size, rngs, config.devices)
        streams = config.streams if in_front else None
        self.norm = norm() if in_front and streams is None else None
        sizes = config.hidden_size, config.eps, config.norm_offset, config.devices
        self.connection = None if streams is None else StreamMixer(streams, *sizes, rngs, injects=True)
        self.post_norm = None if post is None else norm()
        self.summed_over = config.devices.several(self.inner.summed_over)
        self.normed = inner if isinstance(inner, NormedResidual) else None
        self.multiplier = config.residual_multiplier if self.normed is None else self.normed.output
        self.block = inner if isinstance(inner, BlockResidual) else None
        mixes = self.block is not None and self.block.mixes
        self.mix = SourceMix(config.hidden_size, config.eps, rngs) if mixes else None

    def __call__(
        self, x: Stream, info: LaneInfo, state: Any, added: Activations | None = None
    ) -> tuple[Stream, Activations | None, Any]:
        """Run the branch on the stream.

        Args:
            added: output of the previous branch, not yet added to the stream.

        Returns:
            The stream, an output to add to it (or None), and the state.
        """
        # Profiles show these names.
        with jax.named_scope(type(self.inner).__name__):
            terms = (x,) if added is None else (x, added)
            x = sum(terms[1:], x)
            inputs, weights = x, None
            if self.block is not None:
                inputs = x[:, :, -1] if self.mix is None else self.mix(x)
            if self.norm is not None:
                inputs = self.norm(inputs, terms if self.block is None else ())
            if self.connection is not None:
                inputs, weights = self.connection.split(x)
            y, state = self.inner(inputs, info, state)
            y = all_reduce(y, self.summed_over)
            if weights is not None:
                y = over_streams(y, weights)
            if self.post_norm is not None:
                y = self.post_norm(y)
            if self.normed is not None:
                x = self._rounded(inputs, self.normed.stream)
            y = self._rounded(y, self.multiplier)
            return (x, y, state) if self.block is None else (self._joined(x, y), None, state)

    def _joined(self, x: Stream, y: Activations) -> Stream:
        """Append a source to a stream, or add to the last."""
        assert self.block is not None
        parts = (x, y[:, :, None]) if self.block.begins else (x[:, :, :-1], x[:, :, -1:] + y[:, :, None])
        return jnp.concatenate(parts, axis=2)

    def _rounded(self, x: Activations, factor: float) -> Activations:
        """Scale, rounded before an addition in every program: XLA may fuse both, or not."""
        return x if factor == 1.0 else materialize(scaled(x, factor))

    def commit(self, pending: Any, info: LaneInfo, state: Any) -> Any:
        return self.inner.commit(pending, info, state)


class Layer(nnx.Module):
    def __init__(self, config: DecoderConfig, branches: tuple[BranchConfig, ...], rngs: nnx.Rngs):
        self.branches = nnx.List([Branch(config, inner, rngs) for inner in branches])

    def __call__(self, x: Stream, info: LaneInfo, state: tuple, inline: bool = False) -> tuple[Stream, tuple]:
        """Return stream and state after the layer; `inline` traces no shared bodies."""
        states, added = [], None
        for branch, old in zip(self.branches, state, strict=True):
            operands = x, info, old, added
            x, added, new = branch(*operands) if inline else traced_once(branch, "__call__", *operands)
            states.append(new)
        with jax.named_scope(type(self.branches[-1].inner).__name__):
            return x if added is None else x + added, tuple(states)

    def commit(self, pending: tuple, info: LaneInfo, state: tuple) -> tuple:
        entries = zip(self.branches, pending, state, strict=True)
        return tuple(traced_once(branch, "commit", new, info, old) for branch, new, old in entries)


def _share_blocks(layers: list[Stateful]) -> None:
    """Give layers with an equal `shared_as` the block of the first one."""
    blocks: dict[Hashable, Any] = {}
    for layer in layers:
        if layer.shared_as is not None:
            layer.block = blocks.setdefault(layer.shared_as, layer.block)


def lane_info(
    tokens: Tokens,
    lengths: Lengths,
    positions: Positions,
    kv_blocks: Int32[Array, ""] | int,
    verifying: bool = False,
    slots: Slots = None,
    pages: Pages | None = None,
) -> LaneInfo:
    """Derive the masks of a step's lanes."""
    valid = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] < lengths[:, None]
    fresh = (positions == 0) & (lengths > 0)
    return LaneInfo(lengths, positions, valid, fresh, kv_blocks, verifying, slots=slots, pages=pages)


def _rematerialised(layer: Layer, x: Stream, info: LaneInfo, state: tuple) -> tuple[Stream, tuple]:
    """Run a layer with `jax.checkpoint`; a gradient changes no bits of it."""
    x, state = jax.checkpoint(lambda x, state: layer(x, info, state, inline=True))(x, state)
    return materialize(x), state


class Decoder(Stateful):
    """Parameters of a decoder and its step, a pure function.

    The state is a tuple of layers, each a tuple of the states of its branches (None without state).
    """

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
        self.config = config
        vocabulary = (shard_outputs(Segment(config.vocab_size, config.vocab_size)),)
        self.embed_tokens = matrix(rngs, config.vocab_size, config.hidden_size, sharded=vocabulary)
        self.layers = nnx.List([Layer(config, branches, rngs) for branches in config.layers])
        inner_layers = Decoder.stateful(self)  # a subclass adds its layers later
        self.reads_embedding = any(layer.reads_embedding for layer in inner_layers)
        self.reads_tokens = any(layer.reads_tokens for layer in inner_layers)
        _share_blocks(inner_layers)
        if config.streams is None:
            self.norm = config.norm.build(config.hidden_size, rngs, config.devices)
        else:
            sizes = config.streams, config.hidden_size, config.eps, config.norm_offset
            self.norm = StreamMixer(*sizes, config.devices, rngs)
        self.mix = SourceMix(config.hidden_size, config.eps, rngs) if config.mixes_sources else None
        self.lm_head = None if config.tied else matrix(rngs, config.vocab_size, config.hidden_size, sharded=vocabulary)

    def sharded_dims(self) -> dict[tuple[str | int, ...], tuple[ShardedDim, ...]]:
        """Return the shard specs of the parameters, by path; other parameters are replicated."""
        if self.config.devices.sharded:
            raise ValueError(f"only a whole model has shard specs; this is a shard of {self.config.devices}")
        flat: list[tuple[Any, nnx.Variable]] = list(nnx.to_flat_state(nnx.state(self, nnx.Param)))
        return {path: sharded_dims_of(variable) for path, variable in flat if sharded_dims_of(variable)}

    def state_arrays(self) -> tuple:
        """Return each layer's branch states, of `StateArray`s."""
        return tuple(tuple(branch.inner.state_arrays() for branch in layer.branches) for layer in self.layers)

    def state_size(self, dtype: DTypeLike) -> StateSize:
        """Compute the bytes of one sequence's state, with the dtype of caches."""
        return state_size(self.stateful(), dtype)

    def stateful(self) -> list[Stateful]:
        return [branch.inner for layer in self.layers for branch in layer.branches]

    def without_commit(self) -> list[Stateful]:
        return [inner for layer in self.stateful() for inner in layer.without_commit()]

    def sites(self) -> tuple[dict[str, int], ...]:
        """Return each layer's number of heads by kind, and of experts."""
        return tuple(
            {kind: count for branch in layer.branches for kind, count in branch.inner.sites().items()}
            for layer in self.layers
        )

    def embed(self, tokens: Tokens, mask: TokenMask) -> Activations:
        """Look up the embeddings of the tokens in the mask, else zeros."""
        axes = self.config.devices.several((MODEL,))
        if axes:
            local, tokens = local_rows(tokens, MODEL, self.config.vocab_size)
            mask = mask & local
        x = embedding_rows(self.embed_tokens[...], jnp.where(mask, tokens, 0), self.config.devices.platform)
        x = all_reduce(jnp.where(mask[:, :, None], x, 0.0), axes)
        if self.config.embedding_multiplier == 1.0:
            return x
        # Rounded as in `Branch`.
        return materialize(scaled(x, self.config.embedding_multiplier))

    def __call__(
        self,
        tokens: Tokens,
        lengths: Lengths,
        positions: Positions,
        state: tuple,
        kv_blocks: Int32[Array, ""] | int,
        verifying: bool = False,
        slots: Slots = None,
        pages: Pages | None = None,
    ) -> tuple[Activations, tuple]:
        """Run the real tokens of every lane; arguments as for `run` and `LaneInfo`."""
        return self.run(tokens, lane_info(tokens, lengths, positions, kv_blocks, verifying, slots, pages), state)

    def run(
        self,
        tokens: Tokens,
        info: LaneInfo,
        state: tuple,
        embeddings: Activations | None = None,
        remat: bool = False,
    ) -> tuple[Activations, tuple]:
        """Run the real tokens of every lane: prefill, decode, or verification of drafts.

        With `BlockResidual`, hooks get the sum of the current block's outputs, and at the end the mix of all sources.

        Args:
            tokens: token ids; padding past a lane's length is not read.
            info: position 0 starts from zero state; with `verifying` the tokens end with drafts, and `commit` follows
                with the accepted tokens.
            state: pools with the state before the step.
            embeddings: of the tokens; None looks them up.
            remat: a gradient recomputes each layer (`jax.checkpoint`).

        Returns:
            The residual stream after the final norm, and the state after each lane's last real token, or with
            `verifying` the operand `pending` of `commit`. A lane of length 0 keeps its state, bit for bit.
        """
        if embeddings is None:
            x = self.embed(tokens, info.valid)
        else:
            x = jnp.where(info.valid[:, :, None], embeddings, 0.0)
        states, hooks = [], info.hooks
        if self.config.streams is not None:
            x = jnp.tile(x, (1, 1, self.config.streams.count))
        if self.reads_tokens:
            info = info._replace(tokens=jnp.where(info.valid, tokens, 0))
        if hooks is not None:
            x = hooks.residual(x, 0)
        if self.reads_embedding:
            info = info._replace(embedded=x)
        stream = x if self.mix is None else x[:, :, None]
        with one_pass():
            for number, (layer, old) in enumerate(zip(self.layers, state, strict=True)):
                # With hooks no two layers are equal, so no body is shared; this also keeps differentiated functions,
                # which have hooks, free of calls.
                lanes, inline = info if hooks is None else info._replace(layer=number), hooks is not None
                operands = stream, lanes, old
                stream, new = _rematerialised(layer, *operands) if remat else layer(*operands, inline)
                states.append(new)
                if hooks is not None and (self.mix is None or number + 1 < self.config.num_layers):
                    stream = self._hooked(stream, hooks, number + 1)
        if self.mix is not None:
            stream = self.mix(stream)
            stream = stream if hooks is None else hooks.residual(stream, self.config.num_layers)
        return self.norm(stream), tuple(states)

    def _hooked(self, stream: Stream, hooks: Hooks, index: int) -> Stream:
        """Return the stream with the hook's result as its last source."""
        if self.mix is None:
            return hooks.residual(stream, index)
        return jnp.concatenate([stream[:, :, :-1], hooks.residual(stream[:, :, -1], index)[:, :, None]], axis=2)

    def commit(self, pending: tuple, info: LaneInfo, state: tuple) -> tuple:
        """Return the state after the accepted tokens of a verifying step.

        KV caches overwrite rejected tokens before a read; recurrences and convolutions replay accepted tokens.

        Args:
            pending: result of the step in place of the state.
            info: lengths are the accepted tokens, 0..T; a lane with 0 keeps its rows, bit for bit.
        """
        entries = zip(self.layers, pending, state, strict=True)
        with one_pass():
            return tuple(layer.commit(new, info, old) for layer, new, old in entries)

    @property
    def head(self) -> nnx.Param:
        """Matrix of the vocabulary head, `[vocab, hidden]`; the embedding if tied."""
        return self.embed_tokens if self.lm_head is None else self.lm_head

    def logits(self, hidden: Float32[Array, "*rows hidden"]) -> Float32[Array, "*rows vocab"]:
        """Compute float32 logits of final residual rows; a shard its rows."""
        with jax.named_scope("head"):
            return scaled(linear(hidden, self.head[...], self.config.devices), self.config.logits_multiplier)
