"""Names of modules as tensors and configurations write them."""

# Wrappers of the language model in tensor names; lists in configurations are written for one of them or another.
_WRAPPERS = ("model", "language_model", "backbone")


def module_name(name: str) -> str:
    """Return a module's name without `.weight` and without the wrappers of the language model."""
    parts = name.removesuffix(".weight").split(".")
    while len(parts) > 1 and parts[0] in _WRAPPERS:
        parts = parts[1:]
    return ".".join(parts)
