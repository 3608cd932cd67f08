"""What goes wrong while a model runs."""


class NumericalError(RuntimeError):
    """A step computed something that is not a number.

    Args:
        item: the request or text.
        position: the token whose logits are at fault.
    """

    def __init__(self, item: str, position: int):
        super().__init__(
            f"{item}: the logits for token {position} are not numbers; check the checkpoint's weights, or load it with "
            f"dtype='float32'"
        )
