"""Memory of a kernel: content, unwritten places, and changes by loops and branches."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ir_passes.kernels import index_terms
from ir_passes.kernels.blocks import BlockGuessFailed, StepPart
from ir_passes.kernels.copies import Key, Semaphores
from ir_passes.kernels.memory import UnreadableKernel, or_old, uninitialized
from ir_passes.kernels.places import Places, is_static, read_at, write_at


class Ref:
    """Memory of a kernel.

    Attributes:
        value: the content; anything at unwritten places.
        holes: bool, of the memory's shape: unwritten places, if any.
        private: False if other steps may write meanwhile: a store may leave old content, and a read of memory that was
            new to the kernel has unknown content.
        part: if the kernel indexes the whole array.
        copies_only: True if only copies write to it.
        assumed: the guess that every step writes this memory before it reads it, or "".
        operand: True for an unwritten operand, without an aliased result.
        written: written places with computed indices.
    """

    def __init__(
        self, value: Any, holes: np.ndarray | None = None, private: bool = True, part: StepPart | None = None,
        *, copies_only: bool = False, assumed: str = "", operand: bool = False,
    ):  # fmt: skip
        self._value, self.holes, self.private, self.part = value, holes, private, part
        self.copies_only, self.assumed, self.operand = copies_only, assumed, operand
        self._pieces: list[tuple[Places, Any]] = []
        self.written: set[Key] = set()

    @property
    def value(self) -> Any:
        for places, new in self._pieces:
            self._value = write_at(self._value, places, new)
        self._pieces = []
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        self._value, self._pieces = value, []

    @classmethod
    def fresh(
        cls, shape: tuple[int, ...], dtype: Any, private: bool = True, like: Any = None, assumed: str = ""
    ) -> "Ref":
        """Return unwritten memory, stored as `like` or as zeros."""
        value = lax.full(shape, 0, dtype) if like is None else like
        return cls(value, np.ones(shape, bool), private, assumed=assumed)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._value.shape)

    @property
    def has_holes(self) -> bool:
        return self.holes is not None and bool(self.holes.any())

    def content(self) -> Any:
        """Return the content; anything if a part is unwritten."""
        if self.has_holes and self.assumed:
            raise BlockGuessFailed(self.assumed)
        return uninitialized(self._value.shape, self._value.dtype) if self.has_holes else self.value

    def load(self, places: Places, key: Key | None = None) -> Any:
        """Return the elements at a place; anything if unwritten."""
        is_known = self.private or self.holes is None
        if is_known and (self._is_written(key) or not self._open(places)):
            return read_at(self.value, places)
        if self.assumed:
            raise BlockGuessFailed(self.assumed)
        elements = read_at(self._value, places)
        return uninitialized(elements.shape, elements.dtype)

    def _is_written(self, key: Key | None) -> bool:
        bounds = [(index_terms.constant(0), size, 1) for size in self.shape]
        if not key:
            return False
        places = [place[0] for place in self.written if len(place) == 1]
        return any(all(w in pair for w, *pair in zip(place, key[0], bounds, strict=True)) for place in places)

    def store(self, places: Places, new: Any, mask: Any = None, key: Key | None = None) -> None:
        """Write the elements with a true mask."""
        if not self.private and np.size(new) == np.size(self._value):
            new = or_old(new, read_at(self.value, places))
        if mask is not None:
            new = jnp.where(mask, new, read_at(self.value, places))
        elif key is not None and not all(map(is_static, places)):
            self.written.add(key)
        elif self.holes is not None and all(map(is_static, places)):
            numbers = read_at(np.arange(self.holes.size).reshape(self.holes.shape), places)
            self.holes = self.holes.copy()
            self.holes.reshape(-1)[numbers] = False
            # assembled by the next read: until then the array for unwritten places may be read
            self._pieces.append((places, new))
            return
        self.value = write_at(self.value, places, new)

    def _open(self, places: Places) -> bool:
        if not self.has_holes:
            return False
        return not all(map(is_static, places)) or bool(np.any(read_at(self.holes, places)))


class HeldMemory:
    def __init__(self, refs: Sequence[Ref]):
        self.refs = refs

    @classmethod
    def of(cls, operands: Sequence[Any]) -> "HeldMemory":
        """Return the references of some operands, each once."""
        return cls(list({id(ref): ref for ref in operands if isinstance(ref, Ref)}.values()))

    def contents(self) -> list[Any]:
        return [ref.value for ref in self.refs]

    def holes(self) -> list[Any]:
        return [ref.holes for ref in self.refs]

    def set(self, contents: Sequence[Any], holes: Sequence[Any]) -> None:
        for ref, content, hole in zip(self.refs, contents, holes, strict=True):
            ref.value, ref.holes = content, hole

    @contextmanager
    def holding(self, contents: Sequence[Any]) -> Iterator[None]:
        """Run a block with other contents; undo its writes."""
        contents_outside, holes, written = self.contents(), self.holes(), [set(ref.written) for ref in self.refs]
        self.set(contents, holes)
        yield
        self.set(contents_outside, holes)
        for ref, places in zip(self.refs, written, strict=True):
            ref.written = places


def union(*holes: np.ndarray | None) -> np.ndarray | None:
    """Return the union of masks; None for only empty ones."""
    masks = [mask for mask in holes if mask is not None]
    return np.logical_or.reduce(masks) if masks else None


def memory_of(aval: Any) -> tuple[tuple[int, ...], Any]:
    """Return shape and dtype (None for semaphores); raises UnreadableKernel for other memory."""
    dtype = getattr(aval, "dtype", None)
    if str(dtype) == "dma_sem":
        return tuple(int(size) for size in aval.shape), None
    if dtype is None or not isinstance(dtype, np.dtype) or "semaphore" in str(aval).lower():
        raise UnreadableKernel(f"it has memory of another kind than arrays: {aval}")
    return tuple(int(size) for size in aval.shape), dtype


def memory_for(kind: tuple[tuple[int, ...], Any]) -> Any:
    """Return new memory of a kind from `memory_of`."""
    shape, dtype = kind
    return Semaphores(shape) if dtype is None else Ref.fresh(shape, dtype)


def split_reference(ref: Any) -> tuple[Any, list[Any]]:
    return (ref.ref, list(ref.transforms)) if hasattr(ref, "transforms") else (ref, [])
