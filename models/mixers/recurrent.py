"""Layers with a linear recurrence, with replay of accepted drafts."""

from typing import Any

from models.state.shapes import Activations, LaneInfo
from models.state.state import Stateful


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
