"""Origin of a compiled step: the store, or a compilation."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """Origin of a program.

    Attributes:
        stored: from the store.
        seconds: by part: "load", or compilation phases and "keep".
        reusable: later processes find it in the store.
    """

    stored: bool
    seconds: dict[str, float]
    reusable: bool

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {took:.2f}" for name, took in self.seconds.items() if took >= 0.005)
        return f"{'from the store' if self.stored else 'compiled'} in {sum(self.seconds.values()):.2f} s ({parts})"
