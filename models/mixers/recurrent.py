"""Layers with a recurrence, which can be told afterwards how many of a step's tokens count."""

from typing import Any

from models.state.shapes import Activations, LaneInfo
from models.state.state import Stateful


class Recurrent(Stateful):
    """`y = finish(recur(given(x)))`, where only `recur` has to do with the state.

    What the recurrence is given of a token does not depend on the state, so that keeping it is enough to run any number
    of a step's tokens through the recurrence once more, from the state before the step.
    """

    def given(self, x: Activations) -> tuple[Any, Any]:
        """What the recurrence, with its convolution, is given of each token, and what else `finish` needs.

        Every array of the former is [lane, token, ..].
        """
        raise NotImplementedError

    def recur(self, given: Any, info: LaneInfo, state: Any) -> tuple[Any, Any]:
        """Run the real tokens of each lane, from zero state where its sequence begins.

        Returns:
            The outputs of the recurrence and the state after each lane's last real token; that of a lane of length 0
            is unchanged, bit for bit.
        """
        raise NotImplementedError

    def finish(self, mixed: Any, rest: Any) -> Activations:
        """The layer's output, from that of the recurrence and from what `given` has kept for it."""
        raise NotImplementedError

    def __call__(self, x: Activations, info: LaneInfo, state: Any) -> tuple[Activations, Any]:
        """Mix the tokens of each lane, from zero state where its sequence begins.

        Returns:
            Outputs, which mean nothing at tokens that are not real, and the state after each lane's last real token,
            or what the recurrence was given where `info.verifying`.
        """
        given, rest = self.given(x)
        mixed, state = self.recur(given, info, state)
        return self.finish(mixed, rest), given if info.verifying else state

    def commit(self, kept: Any, info: LaneInfo, state: Any) -> Any:
        return self.recur(kept, info, state)[1]
