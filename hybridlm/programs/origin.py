"""Origin of a compiled step: the store, or a compilation."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """Origin of a program.

    Attributes:
        stored: whether the program came from the store and was not compiled.
        seconds: seconds by part: "load", or the phases of a compilation and "keep".
        reusable: whether later processes find the program in the store.
    """

    stored: bool
    seconds: dict[str, float]
    reusable: bool

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {took:.2f}" for name, took in self.seconds.items() if took >= 0.005)
        return f"{'from the store' if self.stored else 'compiled'} in {sum(self.seconds.values()):.2f} s ({parts})"
