"""A message store within one process, in place of the shared store."""


class MemoryStore:
    """Values by name; `get` does not wait.

    Attributes:
        values: all of them.
    """

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, name: str, value: bytes) -> None:
        """Set a value."""
        self.values[name] = value

    def get(self, name: str) -> bytes:
        """Return a value."""
        return self.values[name]

    def delete(self, name: str) -> None:
        """Delete all values below "name/"."""
        self.values = {key: value for key, value in self.values.items() if not key.startswith(f"{name}/")}
