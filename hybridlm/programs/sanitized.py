"""Steps with shadow labels beside their rows (`load(sanitize=True)`), which show whose state a lane finds.

The proof is about a step given its rows; the sanitizer checks that these are the rows of the sequences that the
scheduler means: after every step it compares the labels that moved with the rows to those that the host's own
bookkeeping expects. It waits for each step.
"""

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hybridlm.rows.cached_buffers import CachedBuffers
from hybridlm.rows.pool import RowPool
from hybridlm.steps.operands import Batch
from hybridlm.steps.structure import Rows
from ir_passes import LaneContract, prove_isolation
from ir_passes.host.row_ledger import Label, LaneWork, RowLedger
from ir_passes.sanitizer.sanitize import SanitizedStep, sanitize

ShadowLabels = tuple[jax.Array, ...]
Sanitized = tuple[SanitizedStep, Callable[..., Any]]
"""A step with its checks, and its call: (arguments, labels, expected) -> (outputs, rows, labels, verdict)."""


class Sanitizer:
    """Proves, compiles and runs sanitized steps.

    Attributes:
        steps: how many were checked.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._ledger = RowLedger()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._next = itertools.count(1)
        self._shadow_labels: weakref.WeakKeyDictionary[RowPool | CachedBuffers, ShadowLabels] = (
            weakref.WeakKeyDictionary()
        )
        self._programs: dict[Any, Sanitized] = {}

    def run(
        self,
        program: Sanitized,
        pool: RowPool,
        params: tuple[jax.Array, ...],
        batch: Batch,
        operands: tuple[Any, ...],
        owners: Sequence[Any],
        counts: np.ndarray | None,
    ) -> tuple[Any, Rows]:
        """Run a step on the rows of a pool; arguments as for `Engine.run`.

        Raises:
            SanitizerError: a lane found rows that are not its own, or not where it left them.
        """
        step, call = program
        positions, most = np.asarray(batch.positions), np.asarray(batch.lengths) if counts is None else counts
        turns = [
            None if owner is None else LaneWork(self._number(owner), int(positions[lane]), int(most[lane]))
            for lane, owner in enumerate(owners)
        ]
        expected = self._ledger.expect(turns)
        shadow_labels = self.shadow_labels(pool)
        outputs, rows, shadow_labels, verdict = call((params, pool.take(), *batch, *operands), shadow_labels, expected)
        self._shadow_labels[pool] = shadow_labels
        step.require(verdict, expected)
        self.steps += 1
        if counts is None:
            self._shorten(pool, owners, most - np.asarray(outputs[0]))
        return outputs, rows

    def _shorten(self, pool: RowPool, owners: Sequence[Any], fewer: np.ndarray) -> None:
        """Correct the labels of a step that consumed fewer tokens per lane than it was given."""
        shadow_labels = [np.array(shadow) for shadow in self._shadow_labels[pool]]
        for lane, owner in enumerate(owners):
            if owner is not None and fewer[lane]:
                number = self._number(owner)
                left = self._ledger.label(number)
                label = left._replace(position=left.position - int(fewer[lane]))
                self._ledger.adopt(number, label)
                for shadow in shadow_labels:
                    shadow[(shadow == left).all(axis=1)] = label
        self._shadow_labels[pool] = tuple(jax.numpy.array(shadow) for shadow in shadow_labels)

    def copy(self, program: Sanitized, target: RowPool, source: RowPool, maps: tuple[Any, Any]) -> Rows:
        """Run the copy of a row, with its labels."""
        into, out_of = self.shadow_labels(target), self.shadow_labels(source)
        rows, self._shadow_labels[target] = self._move(program, (target.take(), source.look(), *maps), into, out_of)
        return rows

    def keep(
        self, program: Sanitized, args: tuple[Any, ...], buffers: CachedBuffers, pool: RowPool, places: list[int]
    ) -> tuple[jax.Array, ...]:
        """Run the copy of a part of a row into cached buffers, with its labels.

        `places`: indices of its arrays among the pool's.

        Returns:
            The cached arrays.
        """
        shadow_labels = self.shadow_labels(pool)
        fresh = tuple(jax.numpy.zeros((len(array), 4), jax.numpy.int32) for array in args[0])
        arrays, self._shadow_labels[buffers] = self._move(program, args, fresh, tuple(shadow_labels[i] for i in places))
        return arrays

    def restore(
        self,
        program: Sanitized,
        args: tuple[Any, ...],
        buffers: CachedBuffers,
        pool: RowPool,
        places: list[int],
        mark: Label | None = None,
    ) -> tuple[jax.Array, ...]:
        """Run the copy of cached buffers into a row, with its labels; returns the pool's arrays at these places.

        With a mark, labels that are still those of the time of caching are replaced by it: of states with a common
        beginning, the later ones continue from keys and values of the first.
        """
        shadow_labels = list(self._shadow_labels[pool])
        source = [np.asarray(shadow) for shadow in self._shadow_labels[buffers]]
        if mark is not None:
            said, says = np.array(buffers.mark, np.int32), np.array(mark, np.int32)
            source = [np.where((rows == said).all(axis=1, keepdims=True), says, rows) for rows in source]
        into, out_of = tuple(shadow_labels[i] for i in places), tuple(map(jax.numpy.asarray, source))
        arrays, moved = self._move(program, args, into, out_of)
        for i, shadow in zip(places, moved, strict=True):
            shadow_labels[i] = shadow
        self._shadow_labels[pool] = tuple(shadow_labels)
        return arrays

    def _move(
        self, program: Sanitized, args: tuple[Any, ...], into: ShadowLabels, out_of: ShadowLabels
    ) -> tuple[Any, ShadowLabels]:
        """Run a step of one lane that only moves rows; return what it gives, and the target's shadow labels."""
        step, call = program
        expected = self._ledger.expect([None])
        arrays, shadow_labels, verdict = call(args, (*into, *out_of), expected)
        step.require(verdict, expected)
        return arrays, shadow_labels[: len(into)]

    def program(
        self, shape: Any, step: Callable[..., Any], contract: LaneContract, arguments: Callable[[Any], tuple[Any, ...]]
    ) -> Sanitized:
        """Return a step, proved and with its shadow labels; compiled on its first call.

        Raises:
            IsolationError: it is not proved.
        """
        if shape not in self._programs:
            args = arguments(shape)
            prove_isolation(step, args, contract)
            paths = [one.path for one in contract.bind(step, args).inputs]
            # Old contents of these are masked when a sequence begins: caches by position, recurrent matrices when read.
            # A lane with another's row is found by its convolution state, which is not masked.
            masked = [path for path in paths if ".layers" in path and path.endswith((".key", ".value", ".recurrent"))]
            masked += [path for path in paths if path.endswith(".token")]
            safe = sanitize(step, args, contract, masked=masked)

            def call(args: tuple[Any, ...], shadow_labels: ShadowLabels, expected: Any) -> Any:
                return safe.step(*args, shadow_labels=shadow_labels, expected=expected)

            self._programs[shape] = safe, jax.jit(call)
        return self._programs[shape]

    def forget(self, owner: Any) -> None:
        """Drop the record of a sequence or text that gives up its rows."""
        number = self._numbers.pop(owner, None)
        if number is not None:
            self._ledger.forget(number)

    def mark(self, owner: Any) -> Label:
        """Return the current label of a sequence's rows, for a snapshot of them."""
        return self._ledger.label(self._number(owner))

    def adopt(self, owner: Any, mark: Label) -> None:
        """Record that the rows of a sequence are now a copy of a snapshot."""
        self._ledger.adopt(self._number(owner), mark)

    def stamp(self, position: int) -> Label:
        """Return the label of a state that no step has left: a new owner, at `position`, before the next step."""
        return Label(next(self._next), position, epoch=self._ledger.epoch)

    def label(self, buffers: CachedBuffers, rows: int, mark: Label) -> None:
        """Label all rows of cached buffers."""
        shadow = np.tile(np.array(mark, np.int32), (rows, 1))
        self._shadow_labels[buffers] = tuple(jax.numpy.array(shadow) for _ in buffers.arrays)

    def _number(self, owner: Any) -> int:
        if owner not in self._numbers:
            self._numbers[owner] = next(self._next)
        return self._numbers[owner]

    def shadow_labels(self, pool: RowPool) -> ShadowLabels:
        """Return the shadow labels of a pool: rows that have not been written yet are fresh."""
        if pool not in self._shadow_labels:
            leaves = jax.tree.leaves(pool.look())
            self._shadow_labels[pool] = tuple(jax.numpy.zeros((pool.size, 4), jax.numpy.int32) for _ in leaves)
        return self._shadow_labels[pool]
