"""Parameters by checkpoint tensors: names, shapes, places."""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

ArraySlice = tuple[slice, ...]
"""Slices of step 1 of the first dimensions; others are whole."""


class TensorSlice(NamedTuple):
    """A slice of a tensor and its place in a window of a parameter.

    Attributes:
        taken: argument of `WeightSource.take`: window and ellipsis.
    """

    name: str
    taken: tuple
    place: ArraySlice


@dataclass(frozen=True)
class WeightSource:
    """A way to build a parameter from checkpoint tensors.

    Attributes:
        places: tensor name -> its window; windows cover the parameter without overlap. None for a single tensor.
        take: (tensor, window relative to its place, and an ellipsis) -> values, perhaps a view; by default unchanged.
        by_rows: `take` treats entries of a row alike, so that it can take codes and scales.
    """

    shapes: Mapping[str, tuple[int, ...]]
    places: Mapping[str, ArraySlice] | None = None
    take: Callable[[np.ndarray, tuple], np.ndarray] = operator.getitem
    by_rows: bool = False

    @property
    def keeps_rows(self) -> bool:
        """Whether each row is a row of a tensor, entry by entry."""
        return self.by_rows or self.take is operator.getitem

    def pieces(self, window: ArraySlice, shape: tuple[int, ...]) -> Iterator[TensorSlice]:
        """Yield the tensor slices that fill a window."""
        if self.places is None:
            assert len(self.shapes) == 1, f"{', '.join(self.shapes)}: a source of several tensors needs their places"
        wanted = _entries(window, shape)
        for name in self.shapes:
            place = _entries(() if self.places is None else self.places[name], shape)
            common = [range(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(place, wanted, strict=True)]
            if all(common):
                yield TensorSlice(name, (*_counted_from(place, common), ...), _counted_from(wanted, common))


def _entries(window: ArraySlice, shape: tuple[int, ...]) -> list[range]:
    """Return a window's entries by dimension."""
    sliced = [range(size)[part] for part, size in zip(window, shape, strict=False)]
    return sliced + [range(size) for size in shape[len(window) :]]


def _counted_from(start: Sequence[range], entries: Sequence[range]) -> ArraySlice:
    return tuple(slice(b.start - a.start, b.stop - a.start) for a, b in zip(start, entries, strict=True))


@dataclass(frozen=True)
class Weight:
    """A parameter of a model and its checkpoint sources.

    Attributes:
        options: alternative sources, the usual one first; a checkpoint has all tensors of one source.
        float32: always float32 (norms, decays, biases).
        adapted: further sources, for LoRA adapters that split or fuse the matrix.
    """

    path: tuple[str | int, ...]
    shape: tuple[int, ...]
    options: tuple[WeightSource, ...]
    float32: bool = False
    adapted: tuple[WeightSource, ...] = ()


def tensor(
    path: tuple[str | int, ...], name: str | Sequence[str], shape: tuple[int, ...], float32: bool = False
) -> Weight:
    """Return a parameter of one unchanged tensor, under one of several names."""
    names = (name,) if isinstance(name, str) else name
    return Weight(path, shape, tuple(WeightSource({option: shape}) for option in names), float32)


def computed(values: np.ndarray, neighbour: str, shape: tuple[int, ...]) -> WeightSource:
    """Return the source of float32 numbers without a tensor.

    Tensor `neighbour`, of `shape`, stands in.
    """
    numbers = values.astype(np.float32)
    return WeightSource({neighbour: shape}, take=lambda _, window: numbers[window])


def rows(name: str, shape: tuple[int, ...], index: np.ndarray) -> WeightSource:
    """Return the source of rows `index` of one tensor, in order."""
    return WeightSource(
        {name: shape}, take=lambda tensor, window: tensor[(index[window[0]], *window[1:])], by_rows=True
    )


def split_rows(name: str, sizes: Mapping[str, int], inputs: int) -> dict[str, list[WeightSource]]:
    """Return the sources of consecutive rows of one matrix `[sum of sizes, inputs]`, by part."""
    shape, index, parts = (sum(sizes.values()), inputs), np.arange(sum(sizes.values())), {}
    for part, size in sizes.items():
        parts[part] = [rows(name, shape, index[:size])]
        index = index[size:]
    return parts


def joined(shapes: Mapping[str, tuple[int, ...]]) -> WeightSource:
    """Return the source of several tensors' concatenated rows."""
    places, start = {}, 0
    for name, shape in shapes.items():
        places[name] = (slice(start, start + shape[0]),)
        start += shape[0]
    return WeightSource(shapes, places)


def stacked(names: Sequence[Sequence[str]], shape: tuple[int, int]) -> WeightSource:
    """Return the source of `[expert, out, in]`: each expert's matrices of `shape`, concatenated along `out`."""
    places = {
        name: (slice(expert, expert + 1), slice(part * shape[0], (part + 1) * shape[0]))
        for expert, parts in enumerate(names)
        for part, name in enumerate(parts)
    }
    return WeightSource(dict.fromkeys(places, shape), places, lambda tensor, window: tensor[None][window], by_rows=True)


def expert_matrices(
    fused: str, name: str, parts: Sequence[str], experts: int, shape: tuple[int, int]
) -> tuple[WeightSource, ...]:
    """Return the sources of experts' matrices, one tensor or one per expert and projection.

    `fused` is a tensor `[expert, out, in]` of concatenated projections; projection `part` of expert e is
    `{name}.{e}.{part}.weight`, of the shape `shape`.
    """
    names = [[f"{name}.{e}.{part}.weight" for part in parts] for e in range(experts)]
    return WeightSource({fused: (experts, len(parts) * shape[0], shape[1])}), stacked(names, shape)
