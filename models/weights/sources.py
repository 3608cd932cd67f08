"""Description of parameters by checkpoint tensors: names, shapes, places in the parameter.

Families list their parameters with these values. The caller reads the files: whole parameters or the shards of one
device.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

ArraySlice = tuple[slice, ...]
"""Slices of step 1 of the first dimensions of an array; the remaining dimensions are whole."""


class TensorSlice(NamedTuple):
    """A slice of a tensor and its place in a window of a parameter.

    Attributes:
        name: canonical name of the tensor.
        taken: slice of the tensor, for `WeightSource.take`: a window and an ellipsis.
        place: its place in the window of the parameter.
    """

    name: str
    taken: tuple
    place: ArraySlice


@dataclass(frozen=True)
class WeightSource:
    """A way to build a parameter from tensors of a checkpoint.

    Attributes:
        shapes: canonical tensor name -> the shape it must have.
        places: tensor name -> the window of the parameter that it fills; the windows cover the parameter without
            overlap. None where a single tensor fills all of it.
        take: (tensor, window relative to the beginning of its place, and an ellipsis) -> the values there, a view of
            the tensor wherever possible. By default the tensor fills its place unchanged.
        by_rows: `take` treats all entries of a row alike, so that it can take rows of codes and of scales too.
    """

    shapes: Mapping[str, tuple[int, ...]]
    places: Mapping[str, ArraySlice] | None = None
    take: Callable[[np.ndarray, tuple], np.ndarray] = operator.getitem
    by_rows: bool = False

    @property
    def keeps_rows(self) -> bool:
        """Whether each row of the parameter is a row of a tensor, entry by entry."""
        return self.by_rows or self.take is operator.getitem

    def pieces(self, window: ArraySlice, shape: tuple[int, ...]) -> Iterator[TensorSlice]:
        """Yield the tensor slices that fill a window of the parameter, of tensors inside it.

        Args:
            window: of the parameter, such as the shard of a device.
            shape: of the whole parameter.
        """
        if self.places is None:
            assert len(self.shapes) == 1, f"{', '.join(self.shapes)}: a source of several tensors needs their places"
        wanted = _entries(window, shape)
        for name in self.shapes:
            place = _entries(() if self.places is None else self.places[name], shape)
            common = [range(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(place, wanted, strict=True)]
            if all(common):
                yield TensorSlice(name, (*_counted_from(place, common), ...), _counted_from(wanted, common))


def _entries(window: ArraySlice, shape: tuple[int, ...]) -> list[range]:
    """Return the entries of each dimension in a window; the remaining dimensions are whole."""
    sliced = [range(size)[part] for part, size in zip(window, shape, strict=False)]
    return sliced + [range(size) for size in shape[len(window) :]]


def _counted_from(start: Sequence[range], entries: Sequence[range]) -> ArraySlice:
    return tuple(slice(b.start - a.start, b.stop - a.start) for a, b in zip(start, entries, strict=True))


@dataclass(frozen=True)
class Weight:
    """A parameter of a model and its checkpoint sources.

    Attributes:
        path: path of the parameter in the `nnx` module.
        options: sources, the usual one first; a checkpoint must have all tensors of one of them.
        float32: keep it in float32, whatever dtype the model is loaded in (norms, decays, biases).
        adapted: further sources, by tensor names of LoRA adapters from frameworks that split or fuse the matrix.
    """

    path: tuple[str | int, ...]
    shape: tuple[int, ...]
    options: tuple[WeightSource, ...]
    float32: bool = False
    adapted: tuple[WeightSource, ...] = ()


def tensor(
    path: tuple[str | int, ...], name: str | Sequence[str], shape: tuple[int, ...], float32: bool = False
) -> Weight:
    """Return a parameter of one unchanged checkpoint tensor, under one of several names."""
    names = (name,) if isinstance(name, str) else name
    return Weight(path, shape, tuple(WeightSource({option: shape}) for option in names), float32)


def rows(name: str, shape: tuple[int, ...], index: np.ndarray) -> WeightSource:
    """Return the source of rows `index` of one tensor, in that order."""
    return WeightSource(
        {name: shape}, take=lambda tensor, window: tensor[(index[window[0]], *window[1:])], by_rows=True
    )


def joined(shapes: Mapping[str, tuple[int, ...]]) -> WeightSource:
    """Return the source of the rows of several tensors, concatenated."""
    places, start = {}, 0
    for name, shape in shapes.items():
        places[name] = (slice(start, start + shape[0]),)
        start += shape[0]
    return WeightSource(shapes, places)


def stacked(names: Sequence[Sequence[str]], shape: tuple[int, int]) -> WeightSource:
    """Return the source of `[expert, out, in]`: matrices of each expert, concatenated along `out`.

    Args:
        names: of the matrices of each expert.
        shape: shape of each matrix.
    """
    places = {
        name: (slice(expert, expert + 1), slice(part * shape[0], (part + 1) * shape[0]))
        for expert, parts in enumerate(names)
        for part, name in enumerate(parts)
    }
    return WeightSource(dict.fromkeys(places, shape), places, lambda tensor, window: tensor[None][window], by_rows=True)


def expert_matrices(
    fused: str, name: str, parts: Sequence[str], experts: int, shape: tuple[int, int]
) -> tuple[WeightSource, ...]:
    """Return the sources of the experts' matrices: one tensor, or one per expert and projection.

    Args:
        fused: the tensor `[expert, out, in]`, the rows of the projections concatenated.
        name, parts: projection `part` of expert e is `{name}.{e}.{part}.weight`.
        experts: number of experts.
        shape: shape of each of these matrices.
    """
    names = [[f"{name}.{e}.{part}.weight" for part in parts] for e in range(experts)]
    return WeightSource({fused: (experts, len(parts) * shape[0], shape[1])}), stacked(names, shape)
