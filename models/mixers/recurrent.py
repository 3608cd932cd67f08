"""Layers with a linear recurrence, which can be replayed over the accepted tokens of a step that verifies drafts."""

from typing import Any

from models.state.shapes import Activations, LaneInfo
from models.state.state import Stateful


class Recurrent(Stateful):
    """A layer `y = project_out(recur(project_in(x)))`, in which only `recur` uses the state.

    The token inputs of the recurrence do not depend on the state. A step that verifies drafts keeps them instead of a
    new state; `commit` then replays the accepted tokens from the state before the step.
    """

    def project_in(self, x: Activations) -> tuple[Any, Any]:
        """Return the token inputs of convolution and recurrence, each [lane, token, ..], and the output gate."""
        raise NotImplementedError

    def recur(self, tokens: Any, info: LaneInfo, state: Any) -> tuple[Any, Any]:
        """Run convolution and recurrence over the real tokens of each lane, from zero state where a sequence begins.

        Returns:
            The outputs of the recurrence and the state after each lane's last real token; that of a lane of length 0
            is unchanged, bit for bit.
        """
        raise NotImplementedError

    def project_out(self, mixed: Any, gate: Any, info: LaneInfo) -> Activations:
        """Return the layer's output from that of the recurrence and the gate."""
        raise NotImplementedError

    def __call__(self, x: Activations, info: LaneInfo, state: Any) -> tuple[Activations, Any]:
        """Mix the tokens of each lane, from zero state where its sequence begins.

        Returns:
            Outputs, undefined at padding tokens, and the state after each lane's last real token; where
            `info.verifying`, the token inputs instead of the state.
        """
        tokens, gate = self.project_in(x)
        mixed, state = self.recur(tokens, info, state)
        return self.project_out(mixed, gate, info), tokens if info.verifying else state

    def commit(self, kept: Any, info: LaneInfo, state: Any) -> Any:
        """Return the state after the accepted tokens only: the recurrence runs again over them."""
        return self.recur(kept, info, state)[1]
