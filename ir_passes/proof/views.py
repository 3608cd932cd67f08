"""Reshaped, transposed, sliced views of a pool's array as a path that inverse steps undo.

Two arrays with the same path hold the same elements in the same places, so a value that left a pool by one path may be
put back by it.
"""

from collections.abc import Hashable, Iterable

Step = tuple[Hashable, ...]
View = tuple[Step, ...]
Shape = tuple[int, ...]


def reshaped(view: View, before: tuple[int, ...], after: tuple[int, ...]) -> View:
    """Return the view after a row-major reshape."""
    if view and view[-1][0] == "reshape":
        before = _numbers(view[-1])
        view = view[:-1]
    return view if before == after else (*view, ("reshape", before, after))


def transposed(view: View, permutation: tuple[int, ...]) -> View:
    """Return the view after a transpose."""
    permutation = tuple(map(int, permutation))
    if view and view[-1][0] == "transpose":
        first = _numbers(view[-1])
        permutation = tuple(first[axis] for axis in permutation)
        view = view[:-1]
    return view if permutation == tuple(range(len(permutation))) else (*view, ("transpose", permutation))


def _numbers(step: Step) -> tuple[int, ...]:
    """The shape or the permutation of a step."""
    assert isinstance(step[1], tuple)
    return step[1]


def block(view: View, but: int, full: Shape, sizes: Shape, places: Iterable[tuple[int, Hashable]]) -> View:
    """Return the view after taking the block of these sizes that begins at `places` of some axes.

    Args:
        view: the path.
        but: an axis where the block begins is another matter; -1 for none.
        full, sizes: of the whole and of the block.
        places: axis and beginning; along the others the block begins at 0.
    """
    return entered(view, ("part", but, full, sizes, tuple(sorted(places, key=lambda one: one[0]))))


def entered(view: View, step: Step) -> View:
    """Return the view after taking a part; `left` with the same step puts it back."""
    return (*view, step)


def left(view: View, step: Step) -> View | None:
    """Return the view after putting a part back where it was taken, None where it was taken elsewhere."""
    return view[:-1] if view and view[-1] == step else None
