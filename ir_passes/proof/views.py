"""Views of a pool by reshapes, transposes and slices, as paths of invertible steps.

Arrays with the same path hold the same elements at the same indices. A value that left a pool by a path may be put back
by the inverse path.
"""

from collections.abc import Hashable, Iterable

Step = tuple[Hashable, ...]
View = tuple[Step, ...]
Shape = tuple[int, ...]


def reshaped(view: View, source: tuple[int, ...], target: tuple[int, ...]) -> View:
    if view and view[-1][0] == "reshape":
        source = _numbers(view[-1])
        view = view[:-1]
    return view if source == target else (*view, ("reshape", source, target))


def transposed(view: View, permutation: tuple[int, ...]) -> View:
    if view and view[-1][0] == "transpose":
        first = _numbers(view[-1])
        permutation = tuple(first[axis] for axis in permutation)
        view = view[:-1]
    return view if permutation == tuple(range(len(permutation))) else (*view, ("transpose", permutation))


def _numbers(step: Step) -> tuple[int, ...]:
    assert isinstance(step[1], tuple)
    return step[1]


def block(view: View, free_axis: int, full: Shape, sizes: Shape, starts: Iterable[tuple[int, Hashable]]) -> View:
    """Return the view after taking a block of an array.

    Starts are pairs with an axis, 0 along the others, and ignored along `free_axis` (-1: none).
    """
    return (*view, ("part", free_axis, full, sizes, tuple(sorted(starts, key=lambda pair: pair[0]))))


def left(view: View, step: Step) -> View | None:
    """Return the view after putting a part back at its place."""
    return view[:-1] if view and view[-1] == step else None
