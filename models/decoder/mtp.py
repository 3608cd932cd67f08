"""Multi-token-prediction (MTP) head: one more layer behind a decoder, which drafts tokens for speculative decoding.

Its inputs are pairs: a token, and the decoder's hidden state of the token before it. It predicts the token after the
pair's; with its own hidden states in the pairs it predicts further, one token at a time (arXiv:2404.19737, as in
Qwen3-Next).
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jaxtyping import Float32, Int32

from models.decoder.decoder import Decoder, DecoderConfig, Layer, lane_info
from models.layers.initial import matrix
from models.layers.norms import RMSNorm
from models.ops.linear import linear
from models.state.shapes import Activations, Hooks, LaneInfo, Lengths, Positions, Tokens
from models.state.state import Stateful, name_dims, state_array


class MtpState(NamedTuple):
    """State of the head for N lanes.

    Attributes:
        layer: state of its layer's branches.
        hidden: the decoder's hidden state of the last token, which the next token is paired with; float32. In a step
            that verifies drafts, those of the token before it and of all its tokens, [lane, 1 + token, hidden].
    """

    layer: tuple
    hidden: Float32[Array, "lane hidden"]


class MtpHead(Stateful):
    """MTP head: a layer and norms of its own; embedding and vocabulary head are the decoder's."""

    # A pair has the position of its first token, and is written with its second token.
    cache_lag = 1

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
        assert config.head is not None
        self.devices = config.devices
        size = config.hidden_size
        self.pre_fc_norm_embedding = RMSNorm(size, config.eps, config.norm_offset)
        self.pre_fc_norm_hidden = RMSNorm(size, config.eps, config.norm_offset)
        self.fc = matrix(rngs, size, 2 * size)
        self.layer = Layer(config, config.head, rngs)
        self.norm = RMSNorm(size, config.eps, config.norm_offset)
        self.hidden_size = size

    def state_arrays(self) -> Any:
        """Return a `StateArray` for each array of the head's `MtpState`."""
        layer = tuple(branch.inner.state_arrays() for branch in self.layer.branches)
        return MtpState(layer, state_array(jnp.float32, role="hidden", hidden=self.hidden_size))

    def without_commit(self) -> list[Stateful]:
        """Return those of its layer's branches."""
        return [each for branch in self.layer.branches for each in branch.inner.without_commit()]

    def commit(self, kept: MtpState, info: LaneInfo, state: MtpState) -> MtpState:
        """Return the state with the accepted tokens only."""
        return MtpState(
            self.layer.commit(kept.layer, info, state.layer), _newest(kept.hidden, info.lengths, state.hidden)
        )

    def __call__(
        self, embedded: Activations, before: Activations, info: LaneInfo, state: tuple
    ) -> tuple[Activations, tuple]:
        """Run the valid pairs.

        Args:
            embedded: embeddings of the pairs' tokens.
            before: the hidden states of the tokens before them.
            info: of the pairs.
            state: of the layer's branches.

        Returns:
            The head's own hidden states, after its norm, and the state of the layer's branches.
        """
        both = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(before)]
        joined = linear(jnp.concatenate(both, axis=-1), self.fc[...], self.devices)
        x = jnp.where(info.valid[:, :, None], joined, 0.0)
        x, state = self.layer(x, info, state)
        return self.norm(x), state


class MtpDecoder(Decoder):
    """Decoder with an MTP head, which runs every token that the decoder runs.

    Its state is the decoder's with one more entry, an `MtpState`.
    """

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
        super().__init__(config, rngs)
        self.mtp = MtpHead(config, rngs)

    def state_arrays(self) -> tuple:
        """Return those of the layers, as `Decoder`, and those of the head behind them."""
        return (*super().state_arrays(), self.mtp.state_arrays())

    def stateful(self) -> list[Stateful]:
        """Return every layer that has state, as `Decoder`, and the head."""
        return [*super().stateful(), self.mtp]

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
        """Run decoder and head; then the head's rows hold a pair for every token but the first of a sequence."""
        *layers, head = state
        hidden, layers = super().__call__(
            tokens, lengths, positions, tuple(layers), kv_blocks, hooks, verifying, embeddings, remat
        )
        fresh = lane_info(tokens, lengths, positions, kv_blocks).fresh
        carried = jnp.where(fresh[:, None], 0.0, head.hidden)
        # The kept hidden state is computed from the array of the pairs, behind a barrier (ops/layout: in place).
        past = name_dims(hidden, None, None, "hidden")
        seen = lax.optimization_barrier(jnp.concatenate([carried[:, None], past], axis=1))
        _, kept = self.mtp_forward(tokens, seen[:, :-1], lengths, positions, head.layer, kv_blocks)
        return hidden, (*layers, MtpState(kept, seen if verifying else _newest(seen, lengths, head.hidden)))

    def commit(
        self,
        kept: tuple,
        tokens: Tokens,
        lengths: Lengths,
        positions: Positions,
        state: tuple,
        kv_blocks: Int32[Array, ""] | int,
    ) -> tuple:
        """Return the state with the accepted tokens only, as `Decoder.commit`; the head consumes them too."""
        layers = super().commit(kept[:-1], tokens, lengths, positions, state[:-1], kv_blocks)
        return (*layers, self.mtp.commit(kept[-1], lane_info(tokens, lengths, positions, kv_blocks), state[-1]))

    def mtp_forward(
        self,
        tokens: Tokens,
        before: Activations,
        lengths: Lengths,
        positions: Positions,
        state: tuple,
        kv_blocks: Int32[Array, ""] | int,
    ) -> tuple[Activations, tuple]:
        """Run the head on tokens, each paired with the hidden state of the token before it.

        A pair has the position of its hidden state: RoPE depends on differences of positions only, and so the first
        token of a sequence, which has no pair, needs no masked row in the KV cache.

        Args:
            tokens, lengths, positions, kv_blocks: as for a decoder. A token at position 0 has no pair.
            before: hidden states of the tokens before them, the decoder's or the head's own; not read where there is no
                pair.
            state: of the layer's branches.

        Returns:
            The head's hidden states, whose logits predict the token after each pair, and the layer's state.
        """
        info = lane_info(tokens, lengths, positions, kv_blocks)
        at = positions[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        paired = info.valid & (at > 0)
        info = info._replace(positions=positions - 1, valid=paired)
        return self.mtp(self.embed(tokens, paired), before, info, state)


def _newest(seen: Activations, lengths: Lengths, before: Float32[Array, "lane hidden"]) -> Array:
    """Return the hidden state of each lane's last token.

    Args:
        seen: hidden state of the token before the step, and of each of its tokens.
        lengths: tokens of each lane.
        before: hidden state that lanes without a token keep, bit for bit.
    """
    found = jnp.take_along_axis(seen, lengths[:, None, None], axis=1, mode="fill")[:, 0]
    return jnp.where(lengths[:, None] > 0, found, before)
