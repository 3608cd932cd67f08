"""Decoder: embedding, residual layers, final norm and vocabulary head.

More than 300 lines: a decoder, its layers and their branches with their configs.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float32, Int32

from models.decoder.traced_once import one_pass, traced_once
from models.layers.activations import scaled
from models.layers.embedding import embedding_rows
from models.layers.initial import matrix, sharded_dims_of
from models.layers.norms import RMSNorm
from models.ops.layout import materialize
from models.ops.linear import linear
from models.sharding.devices import MODEL, SINGLE_DEVICE, Devices, all_reduce, local_rows
from models.sharding.shard_sizes import ShardedSize, shard_configs
from models.sharding.sharded_dim import Segment, ShardedDim, shard_outputs
from models.state.shapes import Activations, Hooks, LaneInfo, Lengths, Positions, TokenMask, Tokens
from models.state.state import Stateful, StateSize, state_size


@runtime_checkable
class BranchConfig(Protocol):
    """Config of a mixer or feed-forward layer: `build` makes the layer, `shard` gives the config of one device."""

    def shard(self, devices: Devices) -> "BranchConfig":
        """Return the config of one device's shard; raises ShardingError if sizes do not divide."""
        ...

    def build(self, hidden: int, rngs: nnx.Rngs) -> Any:
        """Build the layer, for a residual stream of width `hidden`."""
        ...


@dataclass(frozen=True)
class PostNorm:
    """A branch whose output is normed instead of its input: `x += norm(inner(x))`."""

    inner: BranchConfig

    def shard(self, devices: Devices) -> "PostNorm":
        """Return the config of one device's shard."""
        return PostNorm(self.inner.shard(devices))

    def build(self, hidden: int, rngs: nnx.Rngs) -> Any:
        """Build the inner layer; `Branch` puts the norm behind it."""
        return self.inner.build(hidden, rngs)


@dataclass(frozen=True)
class DecoderConfig:
    """Config of a decoder.

    Attributes:
        family: name of the family, its Hugging Face `model_type`.
        vocab_size, hidden_size, max_position_embeddings: as in config.json.
        layers: per layer, its residual branches in order: `x += branch(norm(x))`, or as in `PostNorm`.
        eps: `rms_norm_eps` of the layer norms and the final norm.
        norm_offset: 1 where checkpoints store norm weights minus one.
        tied: the head is the embedding (`tie_word_embeddings`).
        eos_token_ids: tokens that end a completion.
        dtype: dtype of the weights as config.json has it ("bfloat16", "float16" or "float32"), for callers without a
            checkpoint; stored weights have their own.
        unknown_keys: fields of config.json that the family does not know.
        embedding_multiplier, residual_multiplier, logits_multiplier: factors on the embedding, on the output of every
            branch, and on the logits.
        head: branches of the one layer of the multi-token-prediction (MTP) head (`models.decoder.mtp`), None for a
            model without it.
        placeholders: ids of tokens whose embeddings another part of the checkpoint replaces, such as an image's.
        devices: that shard the model; all sizes are local ones, `vocab_size` the rows of a shard of the vocabulary.
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
    devices: Devices = SINGLE_DEVICE

    @property
    def num_layers(self) -> int:
        """Number of layers, without the MTP head."""
        return len(self.layers)

    def shard(self, devices: Devices) -> "DecoderConfig":
        """Return the config of each of several devices (tensor and expert parallel).

        Raises:
            ShardingError: with every size that does not divide, and the numbers of devices that divide all.
            ValueError: this config is of a shard already.
        """
        if self.devices.sharded:
            raise ValueError(f"expected the config of a whole model, got that of a shard of {self.devices}")
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
    """Residual branch: `x + inner(norm(x))`, or `x + norm(inner(x))`."""

    def __init__(self, config: DecoderConfig, inner: BranchConfig, rngs: nnx.Rngs):
        self.norm = RMSNorm(config.hidden_size, config.eps, config.norm_offset)
        self.inner = inner.build(config.hidden_size, rngs)
        self.post_norm = isinstance(inner, PostNorm)
        self.summed_over = config.devices.several(self.inner.summed_over)

    def __call__(self, x: Activations, info: LaneInfo, state: Any) -> tuple[Activations, Any]:
        """Return the addition to the residual stream, and the branch's state."""
        # Profiles show these names.
        with jax.named_scope(type(self.inner).__name__):
            y, state = self.inner(x if self.post_norm else self.norm(x), info, state)
            y = all_reduce(y, self.summed_over)
            return self.norm(y) if self.post_norm else y, state

    def commit(self, kept: Any, info: LaneInfo, state: Any) -> Any:
        """Commit the branch's state, as `Stateful.commit`."""
        return self.inner.commit(kept, info, state)


class Layer(nnx.Module):
    """The residual branches of one layer."""

    def __init__(self, config: DecoderConfig, branches: tuple[BranchConfig, ...], rngs: nnx.Rngs):
        self.branches = nnx.List([Branch(config, inner, rngs) for inner in branches])
        self.residual_multiplier = config.residual_multiplier

    def __call__(self, x: Activations, info: LaneInfo, state: tuple, inline: bool = False) -> tuple[Activations, tuple]:
        """Return the residual stream after the layer, and the state of its branches.

        Args:
            x, info, state: before the layer.
            inline: trace the branches in place, instead of calling what equal layers share.
        """
        kept = []
        for branch, own in zip(self.branches, state, strict=True):
            y, branch_state = branch(x, info, own) if inline else traced_once(branch, "__call__", x, info, own)
            if self.residual_multiplier != 1.0:
                # Rounded before it is added, in every program: XLA may do both in one operation, or not.
                y = materialize(scaled(y, self.residual_multiplier))
            x = x + y
            kept.append(branch_state)
        return x, tuple(kept)

    def commit(self, kept: tuple, info: LaneInfo, state: tuple) -> tuple:
        """Commit the state of every branch, as `Stateful.commit`."""
        pairs = zip(self.branches, kept, state, strict=True)
        return tuple(traced_once(branch, "commit", given, info, own) for branch, given, own in pairs)


def lane_info(
    tokens: Tokens,
    lengths: Lengths,
    positions: Positions,
    kv_blocks: Int32[Array, ""] | int,
    verifying: bool = False,
) -> LaneInfo:
    """Derive the masks of a step's lanes; arguments as for `Decoder`."""
    valid = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] < lengths[:, None]
    return LaneInfo(lengths, positions, valid, (positions == 0) & (lengths > 0), kv_blocks, verifying)


def _rematerialised(layer: Layer, x: Activations, info: LaneInfo, state: tuple) -> tuple[Activations, tuple]:
    """Run a layer of which a gradient keeps the inputs only; its bits do not depend on what the program returns."""
    x, state = jax.checkpoint(lambda x, state: layer(x, info, state, inline=True))(x, state)
    return materialize(x), state


class Decoder(Stateful):
    """Parameters of a decoder and its step, a pure function of them, its operands and the state.

    State is a tuple with one entry per layer, each a tuple with one entry per branch: the branch's own state, or None.
    """

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
        self.config = config
        vocabulary = (shard_outputs(Segment(config.vocab_size, config.vocab_size)),)
        self.embed_tokens = matrix(rngs, config.vocab_size, config.hidden_size, sharded=vocabulary)
        self.layers = nnx.List([Layer(config, branches, rngs) for branches in config.layers])
        self.norm = RMSNorm(config.hidden_size, config.eps, config.norm_offset)
        self.lm_head = None if config.tied else matrix(rngs, config.vocab_size, config.hidden_size, sharded=vocabulary)

    def sharded_dims(self) -> dict[tuple[str | int, ...], tuple[ShardedDim, ...]]:
        """Return the shard specs of the parameters, by path; parameters without one are whole on every device.

        They are those of the whole model: a parameter of the model of `config.shard(devices)`, on the device with index
        i along `model` and j along `expert`, has the `ShardedDim.slices` of i or j in each sharded dimension.
        """
        if self.config.devices.sharded:
            raise ValueError(f"shard specs are those of the whole model; this is a shard of {self.config.devices}")
        flat: list[tuple[Any, nnx.Variable]] = list(nnx.to_flat_state(nnx.state(self, nnx.Param)))
        return {path: sharded_dims_of(variable) for path, variable in flat if sharded_dims_of(variable)}

    def state_arrays(self) -> tuple:
        """Return a `StateArray` for each array of the state: layer -> branch -> the branch's own state, or None."""
        return tuple(tuple(branch.inner.state_arrays() for branch in layer.branches) for layer in self.layers)

    def state_size(self, dtype: DTypeLike) -> StateSize:
        """Compute the bytes of the state of one sequence, with the dtype of convolution inputs and KV cache."""
        return state_size(self.stateful(), dtype)

    def stateful(self) -> list[Stateful]:
        """Return every layer that has state or describes that it has none."""
        return [branch.inner for layer in self.layers for branch in layer.branches]

    def without_commit(self) -> list[Stateful]:
        """Return the layers with state that do not define `commit`, so that no drafts can be verified."""
        return [each for layer in self.stateful() for each in layer.without_commit()]

    def sites(self) -> tuple[dict[str, int], ...]:
        """Return for each layer the number of heads of each kind of mixer, and of routed experts."""
        each = ([branch.inner.sites() for branch in layer.branches] for layer in self.layers)
        return tuple({kind: count for found in branches for kind, count in found.items()} for branches in each)

    def embed(self, tokens: Tokens, seen: TokenMask) -> Activations:
        """Look up the embeddings of the tokens in the mask `seen`; the others are zero and their ids are not read."""
        axes = self.config.devices.several((MODEL,))
        if axes:
            here, tokens = local_rows(tokens, MODEL, self.config.vocab_size)
            seen = seen & here
        found = embedding_rows(self.embed_tokens[...], jnp.where(seen, tokens, 0), self.config.devices.platform)
        found = all_reduce(jnp.where(seen[:, :, None], found, 0.0), axes)
        if self.config.embedding_multiplier == 1.0:
            return found
        # Rounded before a layer adds to it, in every program, as in `Layer`.
        return materialize(scaled(found, self.config.embedding_multiplier))

    def __call__(
        self,
        tokens: Tokens,
        lengths: Lengths,
        positions: Positions,
        state: tuple,
        kv_blocks: Int32[Array, ""] | int,
        hooks: Hooks | None = None,
        verifying: bool = False,
        embeddings: Activations | None = None,
        remat: bool = False,
    ) -> tuple[Activations, tuple]:
        """Run the real tokens of every lane: prefill of a chunk of each prompt, a decode step, or verification of
        drafts.

        Args:
            tokens: token ids; those past a lane's length are padding and not read.
            lengths: real tokens of each lane, 0..T.
            positions: position of each lane's first token; 0 starts from zero state.
            state: state before the step.
            kv_blocks: blocks of the KV cache that hold every lane's positions up to the end of this step.
            hooks: called at the sites of the layers (`Hooks`); None for none.
            verifying: the tokens end with drafts, and how many are accepted follows from the output; see `commit`.
            embeddings: in place of those of the tokens; None looks them up.
            remat: a gradient computes each layer anew instead of keeping what is inside it (`jax.checkpoint`).

        Returns:
            The residual stream after the final norm, and the state after each lane's last real token. The state of a
            lane of length 0 is unchanged, bit for bit. Where `verifying`, the operand `kept` of `commit` instead.
        """
        info = lane_info(tokens, lengths, positions, kv_blocks, verifying)._replace(hooks=hooks)
        if embeddings is None:
            x = self.embed(tokens, info.valid)
        else:
            x = jnp.where(info.valid[:, :, None], embeddings, 0.0)
        new_state = []
        if hooks is not None:
            x = hooks.residual(x, 0)
        with one_pass():
            for number, (layer, layer_state) in enumerate(zip(self.layers, state, strict=True)):
                # With hooks no two layers are equal, so none is shared; this also keeps differentiated functions,
                # which have hooks, free of calls.
                own, inline = info if hooks is None else info._replace(layer=number), hooks is not None
                x, kept = _rematerialised(layer, x, own, layer_state) if remat else layer(x, own, layer_state, inline)
                new_state.append(kept)
                if hooks is not None:
                    x = hooks.residual(x, number + 1)
        return self.norm(x), tuple(new_state)

    def commit(
        self,
        kept: tuple,
        tokens: Tokens,
        lengths: Lengths,
        positions: Positions,
        state: tuple,
        kv_blocks: Int32[Array, ""] | int,
    ) -> tuple:
        """Return the state after a step that was run as `verifying`, with the accepted tokens only.

        KV caches hold all tokens of the step: rejected ones are overwritten before they are read. Recurrences, with
        their convolutions, are replayed from the state before the step over the accepted tokens.

        Args:
            kept: returned by the step instead of the state.
            lengths: accepted tokens of each lane, 0..T; a lane without any keeps its rows, bit for bit.
            tokens, positions, state, kv_blocks: operands of the step.
        """
        info, entries = lane_info(tokens, lengths, positions, kv_blocks), zip(self.layers, kept, state, strict=True)
        with one_pass():
            return tuple(layer.commit(given, info, own) for layer, given, own in entries)

    @property
    def head(self) -> nnx.Param:
        """Matrix of the vocabulary head, `[vocab, hidden]`: its own, or the embedding where they are tied."""
        return self.embed_tokens if self.lm_head is None else self.lm_head

    def logits(self, hidden: Float32[Array, "*rows hidden"]) -> Float32[Array, "*rows vocab"]:
        """Compute the logits of rows of the final residual stream, accumulated in float32.

        A shard computes those of its own rows of the vocabulary, which follow those of the devices before it.
        """
        with jax.named_scope("head"):
            return scaled(linear(hidden, self.head[...], self.config.devices), self.config.logits_multiplier)
