"""The instruction sets for which kernels for CPUs are tested."""

from models.cpu_kernels import INSTRUCTIONS, library


def instruction_sets() -> tuple[str, ...]:
    """Return those that this processor runs; without a library all of them, so that no test passes for want of it."""
    found = library()
    return INSTRUCTIONS if found is None else found.instructions
