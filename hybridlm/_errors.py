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


class MissingExtra(ImportError):
    """Something needs a package that only an extra of hybridlm installs.

    Args:
        what: what was asked for.
        package: what it needs.
        extra: which extra installs it.
    """

    def __init__(self, what: str, package: str, extra: str):
        super().__init__(f'{what}: needs {package}, which is not installed: pip install "hybridlm[{extra}]"')
