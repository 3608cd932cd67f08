"""How a parameter is found in a checkpoint: names, shapes, and where each tensor lies in it.

Families describe their parameters with these values; reading files is the caller's business, who may want all of a
parameter or only the part of it that one device has.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

ArraySlice = tuple[slice, ...]
"""A part of an array: slices of step 1 of its first dimensions, or of all; of the others it has everything."""


class TensorSlice(NamedTuple):
    """What one tensor gives to a window of a parameter.

    Attributes:
        name: canonical name of the tensor.
        taken: what of the tensor, for `WeightSource.take`: a window and an ellipsis.
        place: where that lies in the window of the parameter.
    """

    name: str
    taken: tuple
    place: ArraySlice


@dataclass(frozen=True)
class WeightSource:
    """One way to make a parameter of the tensors of a checkpoint.

    Attributes:
        shapes: canonical tensor name -> the shape it must have.
        places: tensor name -> the window of the parameter that is made of it; the windows cover the parameter without
            overlap. None where the one tensor named makes all of it.
        take: (tensor, window of its place, counted from where that begins, and an ellipsis) -> the values there, a view
            of the tensor wherever there is one. Without it the tensor lies there as it is.
    """

    shapes: Mapping[str, tuple[int, ...]]
    places: Mapping[str, ArraySlice] | None = None
    take: Callable[[np.ndarray, tuple], np.ndarray] = operator.getitem

    def pieces(self, window: ArraySlice, shape: tuple[int, ...]) -> Iterator[TensorSlice]:
        """What a window of the parameter is made of; tensors that have nothing in it are left out.

        Args:
            window: the part of the parameter that is wanted.
            shape: of the whole parameter.
        """
        if self.places is None:
            assert len(self.shapes) == 1, f"{', '.join(self.shapes)}: a source of several tensors needs their places"
        wanted = _entries(window, shape)
        for name in self.shapes:
            place = _entries(() if self.places is None else self.places[name], shape)
            both = [range(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(place, wanted, strict=True)]
            if all(both):
                yield TensorSlice(name, (*_counted_from(place, both), ...), _counted_from(wanted, both))


def _entries(window: ArraySlice, shape: tuple[int, ...]) -> list[range]:
    """Which entries of each dimension a window has; dimensions that it does not name are whole."""
    named = [range(size)[one] for one, size in zip(window, shape, strict=False)]
    return named + [range(size) for size in shape[len(window) :]]


def _counted_from(start: Sequence[range], entries: Sequence[range]) -> ArraySlice:
    return tuple(slice(b.start - a.start, b.stop - a.start) for a, b in zip(start, entries, strict=True))


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
    options: tuple[WeightSource, ...]
    float32: bool = False


def tensor(
    path: tuple[str | int, ...], name: str | Sequence[str], shape: tuple[int, ...], float32: bool = False
) -> Weight:
    """A parameter that is one tensor of the checkpoint as it stands, under one name or the one of several it has."""
    names = (name,) if isinstance(name, str) else name
    return Weight(path, shape, tuple(WeightSource({each: shape}) for each in names), float32)


def rows(name: str, shape: tuple[int, ...], index: np.ndarray) -> WeightSource:
    """The rows `index` of one tensor, in that order."""
    return WeightSource({name: shape}, take=lambda tensor, window: tensor[(index[window[0]], *window[1:])])


def joined(shapes: Mapping[str, tuple[int, ...]]) -> WeightSource:
    """The rows of several tensors, one tensor after another."""
    places, start = {}, 0
    for name, shape in shapes.items():
        places[name] = (slice(start, start + shape[0]),)
        start += shape[0]
    return WeightSource(shapes, places)


def stacked(names: Sequence[Sequence[str]], shape: tuple[int, int]) -> WeightSource:
    """`[expert, out, in]` from one matrix per expert, or from several that follow one another along `out`.

    Args:
        names: per expert, the matrices whose rows follow one another.
        shape: shape of each matrix.
    """
    places = {
        name: (slice(expert, expert + 1), slice(part * shape[0], (part + 1) * shape[0]))
        for expert, parts in enumerate(names)
        for part, name in enumerate(parts)
    }
    return WeightSource(dict.fromkeys(places, shape), places, lambda tensor, window: tensor[None][window])


def expert_matrices(
    fused: str, name: str, parts: Sequence[str], experts: int, shape: tuple[int, int]
) -> tuple[WeightSource, ...]:
    """The experts' matrices in one tensor, or one tensor for each expert and part.

    Args:
        fused: the tensor `[expert, out, in]`, the rows of the parts one after another.
        name, parts: matrix `part` of expert e is `{name}.{e}.{part}.weight`.
        experts: number of experts.
        shape: shape of each of these matrices.
    """
    names = [[f"{name}.{e}.{part}.weight" for part in parts] for e in range(experts)]
    return WeightSource({fused: (experts, len(parts) * shape[0], shape[1])}), stacked(names, shape)
