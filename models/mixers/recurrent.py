"""Layers with a linear recurrence, with replay of accepted drafts."""

from typing import Any

from jax import Array
from jaxtyping import Float32

from models.layers.short_conv import layer_conv
from models.ops.layout import merge_heads
from models.ops.linear import linear
from models.ops.recurrences.delta_rule import DeltaTokens, run_delta_rule
from models.state.shapes import Activations, LaneInfo
from models.state.state import ConvRecurrentState, Stateful

Channels = Float32[Array, "lane token channel"]
Inner = Float32[Array, "lane token inner"]
HeadOutputs = Float32[Array, "lane token value_head value"]


class Recurrent(Stateful):
    """A layer `y = project_out(recur(project_in(x)))`; only `recur` uses the state.

    A verifying step returns token inputs instead of a new state; `commit` replays the accepted tokens.
    """

    def project_in(self, x: Activations) -> tuple[Any, Any]:
        """Return token inputs [lane, token, ..] of convolution and recurrence, and the output gate."""
        raise NotImplementedError

    def recur(self, tokens: Any, info: LaneInfo, state: Any) -> tuple[Any, Any]:
        """Run convolution and recurrence over real tokens, from zero for fresh lanes.

        Returns:
            Outputs and state after each lane's last real token; a lane of length 0 keeps its state, bit for bit.
        """
        raise NotImplementedError

    def project_out(self, mixed: Any, gate: Any, info: LaneInfo) -> Activations:
        """Return the layer's output from the recurrence's output and the gate."""
        raise NotImplementedError

    def __call__(self, x: Activations, info: LaneInfo, state: Any) -> tuple[Activations, Any]:
        """Mix the tokens of each lane, from zero state for fresh lanes.

        Returns:
            Outputs, undefined at padding, and the state, or with `info.verifying` the token inputs.
        """
        tokens, gate = self.project_in(x)
        mixed, state = self.recur(tokens, info, state)
        return self.project_out(mixed, gate, info), tokens if info.verifying else state

    def commit(self, pending: Any, info: LaneInfo, state: Any) -> Any:
        """Replay the accepted tokens, and return the state."""
        return self.recur(pending, info, state)[1]


class HeadRecurrence(Recurrent):
    """A recurrence of heads; requests read and change them.

    Attributes:
        config: with `devices`.
        out_proj: matrix `[hidden, inner]`.
    """

    config: Any
    out_proj: Any

    def sites(self) -> dict[str, int]:
        """Count the heads of values."""
        return {"recurrent": dict(self.state_arrays().recurrent.sizes)["value_head"]}

    def gated(self, mixed: HeadOutputs, gate: Inner) -> Array:
        """Return the gated outputs, by heads or concatenated."""
        raise NotImplementedError

    def project_out(self, mixed: HeadOutputs, gate: Inner, info: LaneInfo) -> Activations:
        y = self.gated(mixed, gate)
        if y.ndim == mixed.ndim:
            y = merge_heads(info.hooked_heads(y, "recurrent"))
        elif info.hooks is not None:
            y = info.hooked_heads(y.reshape(mixed.shape), "recurrent").reshape(y.shape)
        return linear(y, self.out_proj[...], self.config.devices)


class DeltaRule(HeadRecurrence):
    """A delta rule after a short convolution.

    Attributes:
        conv1d: matrix `[channel, 1, kernel]` over the channels [q | k | v].
        key_heads: heads of queries and of keys.
    """

    conv1d: Any
    key_heads: int

    def recur(
        self, tokens: DeltaTokens, info: LaneInfo, state: ConvRecurrentState
    ) -> tuple[HeadOutputs, ConvRecurrentState]:
        devices = self.config.devices
        mixed, conv = layer_conv(tokens.conv, self.conv1d[...], state.conv, info, devices=devices)
        out, recurrent = run_delta_rule(mixed, self.key_heads, tokens, info, state.recurrent, devices)
        return out, ConvRecurrentState(conv, recurrent)
