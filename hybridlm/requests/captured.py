"""Captured hidden states and recurrent states, in memory or in a safetensors file."""

import math
import os
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import jax.numpy as jnp
import numpy as np

from hybridlm.checkpoint.safetensors import open_safetensors, safetensors_header, types_of, write_safetensors
from hybridlm.files.atomic import NO_ROOM, naming, replacing, sync
from hybridlm.requests.result_html import preformatted, table
from hybridlm.steps.edit import StateSite
from ir_passes.files.atomic import partial_path, whole_file

HIDDEN = "hidden_states[{}]"
POSITIONS = "positions"
Key = TypeVar("Key", bound=Hashable)
_PATH = re.compile(r"layers\[(\d+)\].*\.(\w+)")


def parse_path(name: str) -> tuple[int, str] | None:
    """Return layer and array of a name like "layers[3][0].mamba.conv", or None."""
    match = _PATH.fullmatch(name)
    return None if match is None else (int(match[1]), match[2])


class StoredArrays(Mapping[Key, np.ndarray]):
    """Arrays of a safetensors file, opened per use."""

    def __init__(self, path: Path, names: Mapping[Key, str]):
        self._path, self._names = path, dict(names)

    def __getitem__(self, key: Key) -> np.ndarray:
        return open_safetensors(self._path).read_stored(self._names[key])

    def __iter__(self) -> Iterator[Key]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, eq=False)
class Captured:
    """Hidden states and states of one sequence at some of its positions.

    Attributes:
        positions: int32 [P], among all tokens that the model reads.
        hidden_states: float32 [P, hidden] by index, as in `LM.forward`: 0 after the embedding, i after layer i - 1.
        states: name -> [P, ..], the state after each token: matrices `layers[3][0].recurrent`, float32 [P, value_head,
            value, key], and last inputs of convolutions `layers[3][0].conv`, [P, tap, channel].
        dims: dimension names of each of `states`.
        path: safetensors file, read on use; None in memory.
    """

    positions: np.ndarray
    hidden_states: Mapping[int, np.ndarray]
    states: Mapping[str, np.ndarray]
    dims: dict[str, tuple[str, ...]] = field(default_factory=dict)
    path: Path | None = None

    def __repr__(self) -> str:
        count, where = len(self.positions), "" if self.path is None else f", {self.path.name}"
        return f"Captured({count} positions, {len(self.hidden_states)} hidden states, {len(self.states)} states{where})"

    def _repr_html_(self) -> str:
        rows = []
        for name, array in self._arrays().items():
            dims = self.dims.get(name, ("position", "hidden"))
            sizes = ", ".join(f"{dim}={size}" for dim, size in zip(dims, array.shape, strict=False))
            rows.append((name, f"{array.dtype} [{sizes}]"))
        return f"{preformatted(repr(self))}{table(rows)}"

    def row(self, position: int) -> int:
        """Return the index of a position; raises ValueError if it was not captured."""
        indices = np.flatnonzero(self.positions == position)
        if not indices.size:
            raise ValueError(f"position: {position} was not captured; captured are {self.positions.tolist()[:20]}")
        return int(indices[0])

    def state(self, layer: int, array: str = "recurrent") -> np.ndarray:
        """Return the states of one layer, [P, ..]; raises ValueError without any."""
        for name in self.states:
            if parse_path(name) == (layer, array):
                return self.states[name]
        raise ValueError(f"layer {layer} has no {array} state that was captured; captured are {list(self.states)}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write positions, "hidden_states[i]" and states by name to a safetensors file."""
        arrays = self._arrays()
        with replacing(Path(path)) as file:
            write_safetensors(file.buffer, types_of(arrays), arrays.values(), {})

    def _arrays(self) -> dict[str, np.ndarray]:
        hidden = {HIDDEN.format(i): array for i, array in self.hidden_states.items()}
        return {POSITIONS: self.positions.astype(np.int32), **hidden, **self.states}


class Recorder:
    """Recorder of one sequence: to memory, a safetensors file or table rows.

    Args:
        path: None for memory or a table.
        add: called with position and float32 arrays of each table row.
    """

    def __init__(
        self,
        capacity: int,
        hidden_states: Sequence[int],
        hidden: int,
        states: Sequence[StateSite],
        path: Path | None,
        add: Callable[[int, dict[str, np.ndarray]], None] | None = None,
    ):
        self._add = add
        self._last: tuple[int, dict[str, np.ndarray]] | None = None  # a row of a table
        self._hidden, self._states = tuple(hidden_states), tuple(site.name for site in states)
        self._dims = {site.name: ("position", *site.dims) for site in states}
        self._count, self._capacity, self._path, self._partial = 0, capacity, path, None
        self._arrays, self._begins = dict[str, np.ndarray](), dict[str, int]()
        types = {POSITIONS: ((capacity,), "int32")}
        types |= {HIDDEN.format(i): ((capacity, hidden), "float32") for i in self._hidden}
        types |= {site.name: ((capacity, *site.shape), site.dtype.name) for site in states}
        self._types = types
        if add is None and path is None:
            self._arrays = {name: np.zeros(shape, jnp.dtype(dtype)) for name, (shape, dtype) in types.items()}
        if path is None:
            return
        self._partial, header = partial_path(path), safetensors_header(types, {})
        with naming(self._partial), self._partial.open("xb") as file:
            file.write(header)
            end = len(header)
            for name, (shape, dtype) in types.items():
                self._begins[name], end = end, end + math.prod(shape) * jnp.dtype(dtype).itemsize
            file.truncate(end)

    @property
    def finished(self) -> bool:
        return self._partial is None

    def put(
        self,
        position: int,
        hidden_states: Mapping[int, np.ndarray],
        states: Mapping[str, np.ndarray] | None,
        last: bool = False,
    ) -> None:
        """Store the values of a position.

        Args:
            hidden_states: float32 [hidden] by index, perhaps more than requested.
            last: keep this position alone.

        Raises:
            OSError: names the file.
        """
        row = 0 if last else self._count
        values = {POSITIONS: np.asarray(position), **{HIDDEN.format(i): hidden_states[i] for i in self._hidden}}
        values |= states or {}
        if self._add is not None:
            del values[POSITIONS]
            self._last = position, {name: np.array(array, np.float32) for name, array in values.items()}
            if not last:
                self.finish()
        elif self._partial is None:
            for name, array in values.items():
                self._arrays[name][row] = array
        else:
            # Writing to a mapped page of a full disk would end the process (SIGBUS).
            with naming(self._partial), self._partial.open("r+b") as file:
                for name, array in values.items():
                    shape, dtype = self._types[name]
                    content = np.broadcast_to(array, shape[1:]).astype(jnp.dtype(dtype), copy=False).tobytes()
                    file.seek(self._begins[name] + row * len(content))
                    file.write(content)
        self._count = row + 1

    def finish(self) -> Captured | None:
        """Return the recorded values, and name the file or complete the table rows."""
        if self._add is not None:
            if self._last is not None:
                self._add(*self._last)
                self._last = None
            return None
        arrays = {name: array[: self._count] for name, array in self._arrays.items()}
        if self._path is not None and self._partial is not None:
            partial = open_safetensors(self._partial)
            arrays = {name: partial.read_stored(name)[: self._count] for name in self._types}
            if self._count < self._capacity:
                with naming(self._path, NO_ROOM), whole_file(self._path) as file:
                    write_safetensors(file, types_of(arrays), arrays.values(), {})
                self.close()
            else:
                sync(self._partial)
                os.replace(self._partial, self._path)
                self._partial = None
        positions, self._arrays = np.array(arrays[POSITIONS]), {}
        hidden, states = {i: HIDDEN.format(i) for i in self._hidden}, {name: name for name in self._states}
        if self._path is not None:
            stored = StoredArrays(self._path, hidden), StoredArrays(self._path, states)
            return Captured(positions, *stored, self._dims, self._path)
        return Captured(
            positions,
            {i: arrays[name] for i, name in hidden.items()},
            {name: arrays[name] for name in states},
            self._dims,
        )

    def close(self) -> None:
        """Delete a file that was not finished."""
        if self._partial is not None:
            self._partial.unlink(missing_ok=True)
            self._partial = None
