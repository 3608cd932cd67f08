"""Steps with shadow labels (`load(sanitize=True)`): checks of row owners.

The proof takes rows as given. The sanitizer checks that they are the intended ones: after every step it compares labels
that moved with rows to the host's expectation.
"""

import itertools
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np

from hybridlm.devices.placement import Placement
from hybridlm.programs.jax_settings import under_settings
from hybridlm.programs.programs import Programs
from hybridlm.programs.runner import Examples, Move, MovedArrays, PoolStep, Runner
from hybridlm.programs.shapes import AnyShape
from hybridlm.rows.cached_buffers import CachedBuffers
from hybridlm.rows.pool import PoolPart, RowPool
from hybridlm.steps.structure import Rows
from ir_passes import prove_isolation
from ir_passes.compile.running import Running
from ir_passes.host.row_ledger import Label, LaneWork, RowLedger
from ir_passes.jaxpr import jax_private
from ir_passes.sanitizer.sanitize import SanitizedStep, sanitize

ShadowLabels = tuple[jax.Array, ...]
Sanitized = tuple[SanitizedStep, Callable[..., Any]]
"""(arguments, labels, expected) -> (outputs, rows, labels, verdict)."""


class Sanitizer(Runner):
    """Proves, compiles and runs sanitized steps, on one device."""

    min_rows = 2  # it recognizes the row axis by its length
    checks_rows = True
    compiles_ahead = False

    def __init__(self, programs: Programs, placement: Placement) -> None:
        super().__init__(programs, placement)
        self.certified, self.steps = False, 0
        self._ledger = RowLedger()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._next = itertools.count(1)
        self._shadow_labels: weakref.WeakKeyDictionary[RowPool | CachedBuffers, ShadowLabels] = (
            weakref.WeakKeyDictionary()
        )
        self._sanitized: dict[Any, Sanitized] = {}

    @under_settings
    def run(self, step: PoolStep, examples: Examples) -> tuple[Any, Rows]:
        """See `Runner.run`; raises SanitizerError for rows of another lane or position."""
        safe, call = self.program(step.shape, examples)
        batch, counts = step.inputs.batch, step.counts
        positions, counted = np.asarray(batch.positions), np.asarray(batch.lengths) if counts is None else counts
        turns = [
            None if owner is None else LaneWork(self._number(owner), int(positions[lane]), int(counted[lane]))
            for lane, owner in enumerate(step.owners)
        ]
        expected = self._ledger.expect(turns)
        labels = self.shadow_labels(step.pool)
        outputs, rows, labels, verdict = call((step.params, step.pool.take(), step.inputs), labels, expected)
        self._shadow_labels[step.pool] = labels
        safe.require(verdict, expected)
        self.steps += 1
        if counts is None:
            self._shorten(step.pool, step.owners, counted - np.asarray(outputs[0]))
        return outputs, rows

    def _shorten(self, pool: RowPool, owners: Sequence[Any], fewer: np.ndarray) -> None:
        """Correct the labels after a step with fewer tokens than expected."""
        shadow_labels = [np.array(shadow) for shadow in self._shadow_labels[pool]]
        for lane, owner in enumerate(owners):
            if owner is not None and fewer[lane]:
                number = self._number(owner)
                old_label = self._ledger.label(number)
                label = old_label._replace(position=old_label.position - int(fewer[lane]))
                self._ledger.adopt(number, label)
                for shadow in shadow_labels:
                    shadow[(shadow == old_label).all(axis=1)] = label
        self._shadow_labels[pool] = tuple(jax.numpy.array(shadow) for shadow in shadow_labels)

    @under_settings
    def move(self, step: Move, examples: Examples) -> None:
        """See `Runner.move`; the labels move with the arrays.

        A mark replaces labels of caching: states with a common prefix share the first state's keys and values.

        Raises:
            SanitizerError: the moved row is not the selected one.
        """
        safe, call = self.program(step.shape, examples)
        target, source = step.target, step.source
        into, out_of = self._labels_of(target), self._labels_of(source)
        if step.mark is not None and isinstance(source, CachedBuffers):
            old_mark, new_mark = np.array(source.mark, np.int32), np.array(step.mark, np.int32)
            out_of = tuple(
                jax.numpy.where((rows == old_mark).all(axis=1, keepdims=True), new_mark, rows) for rows in out_of
            )
        expected = self._ledger.expect([None])
        maps = self.placement.put_whole(tuple(step.maps))
        new, moved, verdict = call((target.take(), source.look(), *maps), (*into, *out_of), expected)
        safe.require(verdict, expected)
        if isinstance(target, PoolPart):
            labels = list(self.shadow_labels(target.pool))
            for i, label in zip(target.places, moved, strict=False):
                labels[i] = label
            self._shadow_labels[target.pool] = tuple(labels)
        else:
            self._shadow_labels[target] = moved[: len(into)]
        target.put(new)

    def require_edits(self, subject: str) -> None:
        raise ValueError(f"{subject} expect a model without sanitize; load it without sanitize")

    def start_timing(self, shape: AnyShape, examples: Examples) -> bool:
        """Return False: a step is compiled on its first call."""
        return False

    @under_settings
    def program(self, shape: Any, examples: Examples) -> Sanitized:
        """Return a proved step with shadow labels.

        Raises:
            IsolationError, AuditError: it is not proved, or fails `Programs.measure`.
        """
        key = shape, jax_private.program_settings()
        if key not in self._sanitized:
            (step, contract), args = self.programs.step(shape), examples(shape)
            prove_isolation(step, args, contract)
            self.programs.measure(shape)
            paths = [bound_input.path for bound_input in contract.bind(step, args).inputs]
            # Old contents of these are masked when a sequence begins: caches by position, recurrent matrices when read.
            # A lane with another's row is found by its convolution state, which is not masked.
            masked = [path for path in paths if path.endswith(self._masked)]
            masked += [path for path in paths if path.endswith(".token")]
            safe = sanitize(step, args, contract, masked=masked)

            def call(args: tuple[Any, ...], shadow_labels: ShadowLabels, expected: Any) -> Any:
                return safe.step(*args, shadow_labels=shadow_labels, expected=expected)

            self._sanitized[key] = safe, Running(jax.jit(call), (), "off")
        return self._sanitized[key]

    @cached_property
    def _masked(self) -> tuple[str, ...]:
        arrays = jax.tree_util.tree_leaves_with_path(self.programs.structure.arrays.layers)
        masked = [path for path, array in arrays if array.role in ("cache", "recurrent")]
        return tuple(f".layers{jax.tree_util.keystr(path)}" for path in masked)

    def forget(self, owner: Any) -> None:
        number = self._numbers.pop(owner, None)
        if number is not None:
            self._ledger.forget(number)

    def mark(self, owner: Any) -> Label:
        return self._ledger.label(self._number(owner))

    def adopt(self, owner: Any, mark: Label | None) -> None:
        if mark is not None:
            self._ledger.adopt(self._number(owner), mark)

    def stamp(self, buffers: Sequence[CachedBuffers], position: int) -> Label:
        mark = Label(next(self._next), position, epoch=self._ledger.epoch)
        for buffer in buffers:
            buffer.mark = mark
            shadow = np.tile(np.array(mark, np.int32), (self.min_rows, 1))
            self._shadow_labels[buffer] = tuple(jax.numpy.array(shadow) for _ in buffer.arrays)
        return mark

    def _number(self, owner: Any) -> int:
        if owner not in self._numbers:
            self._numbers[owner] = next(self._next)
        return self._numbers[owner]

    def _labels_of(self, arrays: MovedArrays) -> ShadowLabels:
        if isinstance(arrays, PoolPart):
            labels = self.shadow_labels(arrays.pool)
            return tuple(labels[i] for i in arrays.places)
        return self.shadow_labels(arrays)

    def shadow_labels(self, arrays: RowPool | CachedBuffers) -> ShadowLabels:
        """Return the shadow labels of arrays; unwritten rows are fresh."""
        if arrays not in self._shadow_labels:
            leaves = jax.tree.leaves(arrays.look())
            self._shadow_labels[arrays] = tuple(jax.numpy.zeros((len(leaf), 4), jax.numpy.int32) for leaf in leaves)
        return self._shadow_labels[arrays]
