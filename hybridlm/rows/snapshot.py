"""Snapshots: the state of one sequence at one position, with an identifying label.

A recurrent state does not show its tokens: a wrong state is as plausible as the right state. So a snapshot is published
only with its row's position, and restored only where model, dtype, context, layout and tokens match.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridlm.checkpoint import Fingerprint
from hybridlm.devices.mesh import MODEL
from hybridlm.devices.placement import Placement
from hybridlm.rows.cached_buffers import BufferSpan, CachedBuffers
from hybridlm.rows.pool import RowPool
from ir_passes.host.row_ledger import Label
from ir_passes.host.slot_owner import Slot
from models.state.pages import cache_positions


class SnapshotError(ValueError):
    """A state does not match its label or its use; the message lists every difference."""


class ArrayLayout(NamedTuple):
    """One array of a sequence.

    Attributes:
        path: path in the rows: "layers[0][0].conv".
        shape: of one row, or of the context's pages in order.
        positions: position axis of `shape`; None for a state of fixed size.
        devices: number of devices with consecutive shards in it; 1 in the model's order.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    positions: int | None
    devices: int = 1

    def __str__(self) -> str:
        parts = f" in {self.devices} parts" if self.devices > 1 else ""
        return f"{self.path} {self.dtype}{list(self.shape)}{parts}"


@dataclass(frozen=True)
class StateKind:
    """Properties that a state must share with a model to be continued by it.

    Attributes:
        model: `LM.fingerprint`.
        dtype: of the matrices.
        layout: every array of a row.
    """

    model: Fingerprint | str
    dtype: str
    context: int
    layout: tuple[ArrayLayout, ...]

    def differences(self, other: "StateKind") -> list[str]:
        """List the differences from this, expected kind."""
        faults = [
            f"{field}: expected {expected}, got {got}"
            for field, expected, got in (
                ("model", self.model, other.model),
                ("dtype", self.dtype, other.dtype),
                ("context", self.context, other.context),
            )
            if expected != got
        ]
        if self.layout != other.layout:
            expected_arrays, other_arrays = set(map(str, self.layout)), set(map(str, other.layout))
            missing, extra = sorted(expected_arrays - other_arrays)[:3], sorted(other_arrays - expected_arrays)[:3]
            faults.append(f"layout: expected {missing or 'the same arrays in another order'}, got {extra}")
        return faults


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state after the first `position` tokens of a sequence; it never changes.

    Attributes:
        tokens: `token_hash` of these tokens.
        epoch: tenancy of the row, for debugging, never compared; 0 at position 0.
        state: the arrays of fixed size; None at position 0, where a sequence begins from zero state.
        spans: the growing arrays, position by position; may be empty.
        mark: the sanitizer's label of the row, or None.
    """

    kind: StateKind
    position: int
    tokens: str
    epoch: int
    state: CachedBuffers | None
    spans: tuple[BufferSpan[CachedBuffers], ...] = ()
    mark: Label | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        buffers = {span.buffer for span in self.spans} | ({self.state} if self.state is not None else set())
        return sum(buffer.nbytes for buffer in buffers)

    def require(self, kind: StateKind) -> None:
        """Check that the state is of this kind, and all parts at its position.

        Raises:
            SnapshotError: it does not fit; lists expected and actual values.
        """
        faults = kind.differences(self.kind)
        position, reached = self.position, 0
        for buffer, first, count in self.spans:
            if buffer.position + first != reached:
                faults.append(f"keys and values: expected position {reached}, got position {buffer.position + first}")
            reached += count
        grows = any(array.positions is not None for array in kind.layout)
        if reached != (position if grows else 0):
            faults.append(f"keys and values: expected {position} positions, got {reached}")
        if (0 if self.state is None else self.state.position) != position:
            faults.append(f"state: expected one at position {position}, got {self.state}")
        if faults:
            raise SnapshotError(
                f"a state of another model or position cannot be continued: {'; '.join(faults)}; compute it again with "
                "this model"
            )

    def require_tokens(self, tokens: Sequence[int]) -> None:
        """Check that a sequence begins with the tokens that the state has seen.

        Raises:
            SnapshotError: it does not, or has no further token.
        """
        position = self.position
        if len(tokens) <= position:
            raise SnapshotError(
                f"a state at position {position} continues sequences of more tokens, got one of {len(tokens)}"
            )
        actual = token_hash(tokens[:position])
        if actual != self.tokens:
            raise SnapshotError(
                f"a state at position {position} was made from other tokens than the sequence begins with: expected "
                f"the hash {self.tokens}, got {actual}"
            )


def layout_of(rows: Any, arrays: Any, context: int, placement: Placement) -> tuple[ArrayLayout, ...]:
    """Return the layout of every array of a sequence."""
    layout = []
    for (path, leaf), array in zip(jax.tree_util.tree_leaves_with_path(rows), jax.tree.leaves(arrays), strict=True):
        name, positions = jax.tree_util.keystr(path).lstrip("."), array.positions_axis
        devices = placement.size(MODEL) if MODEL in placement.dimensions(leaf) else 1
        shape = tuple(
            cache_positions(context) if axis == positions else size for axis, size in enumerate(leaf.shape[1:])
        )
        layout.append(ArrayLayout(name, shape, leaf.dtype.name, positions, devices))
    return tuple(layout)


def token_hash(tokens: Sequence[int]) -> str:
    """Return the SHA-256 of token ids, in hexadecimal."""
    return hashlib.sha256(np.asarray(tokens, "<i8").tobytes()).hexdigest()


def require_consumed(pool: RowPool, slot: Slot, count: int) -> None:
    """Raise SnapshotError if a row has consumed another number of tokens."""
    consumed = pool.consumed(slot)
    if consumed != count:
        raise SnapshotError(
            f"a snapshot after {count} tokens cannot be taken of {slot!r}: the row has consumed {consumed} since "
            "it was acquired"
        )


def nothing_consumed(kind: StateKind) -> Snapshot:
    return Snapshot(kind, 0, token_hash(()), 0, None)
