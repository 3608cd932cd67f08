"""The state of one sequence at one position, kept as a value: its rows in every array, and a label that says whose.

A recurrent state cannot be cut back and does not show what it has seen: a wrong one is as plausible as the right one.
Therefore a snapshot is published only with the position that its row has reached, and is restored only where model,
dtype, context, layout and tokens are those that it was made for.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hybridlm._rows import RowPool
from ir_passes import Label, Slot


class SnapshotError(ValueError):
    """A state that is not what its label or its user says; the message lists every difference."""


class ArrayLayout(NamedTuple):
    """One array of the rows of a sequence.

    Attributes:
        path: where it is in the rows: "layers[0][0].conv".
        shape: of one row, without the row axis.
        dtype: of its elements.
        positions: the axis of `shape` that counts positions of the sequence; None for a state of fixed size.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    positions: int | None

    def __str__(self) -> str:
        return f"{self.path} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class StateKind:
    """What a state must have in common with a model to mean anything to it.

    Attributes:
        model: fingerprint of the checkpoint (`LM.fingerprint`).
        dtype: of the matrices that computed it.
        context: most tokens of a sequence.
        layout: every array of a row.
    """

    model: str
    dtype: str
    context: int
    layout: tuple[ArrayLayout, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of a state on the device."""
        return sum(math.prod(one.shape) * jnp.dtype(one.dtype).itemsize for one in self.layout)

    def differences(self, found: "StateKind") -> list[str]:
        """What is wrong with a state of the kind `found` for a model that expects this kind."""
        faults = [
            f"{what}: expected {expected}, got {got}"
            for what, expected, got in (
                ("model", self.model, found.model),
                ("dtype", self.dtype, found.dtype),
                ("context", self.context, found.context),
            )
            if expected != got
        ]
        if self.layout != found.layout:
            ours, others = set(map(str, self.layout)), set(map(str, found.layout))
            missing, extra = sorted(ours - others)[:3], sorted(others - ours)[:3]
            faults.append(f"layout: expected {missing or 'the same arrays in another order'}, got {extra}")
        return faults


@dataclass(frozen=True)
class SnapshotLabel:
    """Whose state a snapshot is.

    Attributes:
        kind: the model and the layout.
        position: tokens that the state has seen.
        tokens: hash of these tokens (`token_hash`).
        epoch: which tenancy of its row made it; 0 where nothing was consumed.
    """

    kind: StateKind
    position: int
    tokens: str
    epoch: int


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state after the first `label.position` tokens of a sequence; it never changes.

    Attributes:
        label: whose state it is.
        pool: the rows, a pool of its own; None at position 0, where a sequence begins from zero state.
        slot: its row in the pool.
        mark: what the sanitizer says of the row; None without one.
    """

    label: SnapshotLabel
    pool: RowPool | None
    slot: Slot | None
    mark: Label | None = None

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return 0 if self.pool is None else sum(leaf.nbytes for leaf in jax.tree.leaves(self.pool.look()))

    def require(self, kind: StateKind) -> None:
        """Check that it was made by a model of this kind.

        Raises:
            SnapshotError: it was not; lists what was expected and what the label says.
        """
        faults = kind.differences(self.label.kind)
        if faults:
            raise SnapshotError(
                f"a state of another model cannot be continued: {'; '.join(faults)}; compute it again with this model"
            )

    def require_tokens(self, tokens: Sequence[int]) -> None:
        """Check that a sequence begins with the tokens that it has seen.

        Raises:
            SnapshotError: it does not, or it has no token left that the state has not seen.
        """
        position = self.label.position
        if len(tokens) <= position:
            raise SnapshotError(
                f"a state at position {position} continues sequences of more tokens, got one of {len(tokens)}"
            )
        found = token_hash(tokens[:position])
        if found != self.label.tokens:
            raise SnapshotError(
                f"a state at position {position} was made from other tokens than the sequence begins with: expected "
                f"the hash {self.label.tokens}, got {found}"
            )


def token_hash(tokens: Sequence[int]) -> str:
    """SHA-256 of token ids, in hexadecimal."""
    return hashlib.sha256(np.asarray(tokens, "<i8").tobytes()).hexdigest()


def publish(
    kind: StateKind, pool: RowPool, slot: Slot, tokens: Sequence[int], epoch: int, mark: Label | None = None
) -> Snapshot:
    """Make a snapshot of a pool whose one row in use is the state after `tokens`.

    Args:
        kind: of the model that computed it.
        pool: nobody else may use it from now on.
        slot: the row.
        tokens: what it is said to have consumed.
        epoch: tenancy of the row that consumed them.
        mark: what the sanitizer says of the row.

    Raises:
        SnapshotError: the row has consumed another number of tokens.
    """
    consumed = pool.consumed(slot)
    if consumed != len(tokens):
        raise SnapshotError(
            f"a snapshot after {len(tokens)} tokens cannot be taken of {slot!r}: the row has consumed {consumed} since "
            "it was acquired"
        )
    if not tokens:
        return nothing_consumed(kind)
    return Snapshot(SnapshotLabel(kind, consumed, token_hash(tokens), epoch), pool, slot, mark)


def nothing_consumed(kind: StateKind) -> Snapshot:
    """The state before the first token: no rows."""
    return Snapshot(SnapshotLabel(kind, 0, token_hash(()), 0), None, None)
