"""How a parameter is found in a checkpoint: names, shapes, and how to build it.

Families describe their parameters with these values; reading files is the caller's business.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Read = Callable[[str], np.ndarray]


@dataclass(frozen=True)
class Source:
    """One way to build a parameter from the tensors of a checkpoint.

    Attributes:
        shapes: canonical tensor name -> the shape it must have.
        build: makes the parameter from `read(name)`, which gives one tensor as a NumPy array that must not be
            written to; None where the one tensor named is the parameter itself.
    """

    shapes: Mapping[str, tuple[int, ...]]
    build: Callable[[Read], np.ndarray] | None = None


@dataclass(frozen=True)
class Weight:
    """One parameter of a model and where it comes from.

    Attributes:
        path: path of the parameter in the `nnx` module.
        shape: its shape.
        options: ways to build it, the usual one first; a checkpoint must hold all tensors of one of them.
        float32: keep it in float32 whatever dtype the model is loaded in (norms, decays, biases).
    """

    path: tuple[str | int, ...]
    shape: tuple[int, ...]
    options: tuple[Source, ...]
    float32: bool = False


def tensor(
    path: tuple[str | int, ...], name: str | Sequence[str], shape: tuple[int, ...], float32: bool = False
) -> Weight:
    """A parameter that is one tensor of the checkpoint as it stands, under one name or the one of several it has."""
    names = (name,) if isinstance(name, str) else name
    return Weight(path, shape, tuple(Source({each: shape}) for each in names), float32)


def rows(name: str, shape: tuple[int, ...], index: np.ndarray) -> Source:
    """The rows `index` of one tensor, in that order."""
    return Source({name: shape}, lambda read: read(name)[index])


def joined(shapes: Mapping[str, tuple[int, ...]]) -> Source:
    """The rows of several tensors, one tensor after another."""
    return Source(shapes, lambda read: np.concatenate([read(name) for name in shapes]))


def stacked(names: Sequence[Sequence[str]], shape: tuple[int, ...]) -> Source:
    """`[expert, out, in]` from one matrix per expert, or from several that are concatenated along `out`.

    Args:
        names: per expert, the matrices whose rows follow one another.
        shape: shape of each matrix.
    """

    def build(read: Read) -> np.ndarray:
        first = read(names[0][0])
        result = np.empty((len(names), len(names[0]) * shape[0], shape[1]), first.dtype)
        for expert, parts in enumerate(names):
            for part, name in enumerate(parts):
                result[expert, part * shape[0] : (part + 1) * shape[0]] = read(name)
        return result

    return Source({name: shape for parts in names for name in parts}, build)


def expert_matrices(
    fused: str, name: str, parts: Sequence[str], experts: int, shape: tuple[int, int]
) -> tuple[Source, ...]:
    """The experts' matrices in one tensor, or one tensor for each expert and part.

    Args:
        fused: the tensor `[expert, out, in]`, the rows of the parts one after another.
        name, parts: matrix `part` of expert e is `{name}.{e}.{part}.weight`.
        experts: number of experts.
        shape: shape of each of these matrices.
    """
    names = [[f"{name}.{e}.{part}.weight" for part in parts] for e in range(experts)]
    return Source({fused: (experts, len(parts) * shape[0], shape[1])}), stacked(names, shape)
