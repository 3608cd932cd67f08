"""Multi-token-prediction (MTP) head: a layer after a decoder that drafts tokens.

Its inputs are pairs of a token and the decoder's hidden state of the previous token; its output predicts the next
token. From its own hidden states it predicts further tokens (arXiv:2404.19737, as in Qwen3-Next).
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jaxtyping import Float32

from models.decoder.decoder import Decoder, DecoderConfig, Layer, lane_info
from models.layers.initial import matrix
from models.ops.linear import linear
from models.state.rows import put_rows, take_rows
from models.state.shapes import Activations, LaneInfo, Lengths, Tokens
from models.state.state import Stateful, name_dims, state_array


class MtpState(NamedTuple):
    """State of the head, with a row for each sequence.

    Attributes:
        hidden: float32 hidden state of the last token, for the next pair. In a verifying step: of the previous token
            and of all its tokens, [lane, 1 + token, hidden].
    """

    layer: tuple
    hidden: Float32[Array, "row hidden"]


class MtpHead(Stateful):
    """A layer with norms; it shares the decoder's embedding and vocabulary head."""

    # A pair has the position of its first token, and is written with its second token.
    cache_lag = 1

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
        assert config.head is not None
        self.devices = config.devices
        size = config.hidden_size
        self.pre_fc_norm_embedding = config.norm.build(size, rngs, config.devices)
        self.pre_fc_norm_hidden = config.norm.build(size, rngs, config.devices)
        self.fc = matrix(rngs, size, 2 * size)
        self.layer = Layer(config, config.head, rngs)
        self.norm = config.norm.build(size, rngs, config.devices)
        self.hidden_size = size

    def state_arrays(self) -> Any:
        layer = tuple(branch.inner.state_arrays() for branch in self.layer.branches)
        return MtpState(layer, state_array(jnp.float32, role="hidden", hidden=self.hidden_size))

    def without_commit(self) -> list[Stateful]:
        return [layer for branch in self.layer.branches for layer in branch.inner.without_commit()]

    def commit(self, pending: MtpState, info: LaneInfo, state: MtpState) -> MtpState:
        newest = _newest(pending.hidden, info.lengths, take_rows(state.hidden, info.slots))
        layer = self.layer.commit(pending.layer, info, state.layer)
        return MtpState(layer, put_rows(state.hidden, info.slots, newest))

    def __call__(
        self, embedded: Activations, hidden: Activations, info: LaneInfo, state: tuple
    ) -> tuple[Activations, tuple]:
        """Run the valid pairs; return normed hidden states and the branches' state."""
        pairs = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        joined = linear(jnp.concatenate(pairs, axis=-1), self.fc[...], self.devices)
        x = jnp.where(info.valid[:, :, None], joined, 0.0)
        x, state = self.layer(x, info, state)
        return self.norm(x), state


class MtpDecoder(Decoder):
    """Decoder with an MTP head; the state is the decoder's and an `MtpState`."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
        super().__init__(config, rngs)
        self.mtp = MtpHead(config, rngs)

    def state_arrays(self) -> tuple:
        return (*super().state_arrays(), self.mtp.state_arrays())

    def stateful(self) -> list[Stateful]:
        return [*super().stateful(), self.mtp]

    def run(self, tokens: Tokens, info: LaneInfo, state: tuple, *args: Any, **kwargs: Any) -> tuple[Activations, tuple]:
        """Run decoder and head, with a pair per token after a sequence's first."""
        *layers, head = state
        hidden, layers = super().run(tokens, info, tuple(layers), *args, **kwargs)
        previous = take_rows(head.hidden, info.slots)
        carried = jnp.where(info.fresh[:, None], 0.0, previous)
        # The new hidden state is computed from the array of the pairs, after a barrier (ops/layout: in place).
        named = name_dims(hidden, None, None, "hidden")
        history = lax.optimization_barrier(jnp.concatenate([carried[:, None], named], axis=1))
        previous_hidden = history[:, :-1]
        lanes = lane_info(tokens, info.lengths, info.positions, info.kv_blocks, slots=info.slots, pages=info.pages)
        _, layer = self.mtp_forward(tokens, previous_hidden, lanes, head.layer)
        if info.verifying:
            return hidden, (*layers, MtpState(layer, history))
        newest = put_rows(head.hidden, info.slots, _newest(history, info.lengths, previous))
        return hidden, (*layers, MtpState(layer, newest))

    def commit(self, pending: tuple, info: LaneInfo, state: tuple) -> tuple:
        return (*super().commit(pending[:-1], info, state[:-1]), self.mtp.commit(pending[-1], info, state[-1]))

    def mtp_forward(
        self, tokens: Tokens, hidden: Activations, info: LaneInfo, state: tuple
    ) -> tuple[Activations, tuple]:
        """Run the head on pairs; return hidden states and the layer's state.

        A pair has the position of its hidden state: RoPE depends only on differences, and a sequence's first token,
        without a pair, needs no masked row in the KV cache.
        """
        paired = info.valid & (info.token_positions > 0)
        info = info._replace(positions=info.positions - 1, valid=paired)
        return self.mtp(self.embed(tokens, paired), hidden, info, state)


def _newest(history: Activations, lengths: Lengths, old: Float32[Array, "lane hidden"]) -> Array:
    """Return each lane's last hidden state; idle lanes get `old`, bit for bit.

    `history` begins with the last token before the step.
    """
    last = jnp.take_along_axis(history, lengths[:, None, None], axis=1, mode="fill")[:, 0]
    return jnp.where(lengths[:, None] > 0, last, old)
