"""Steps with a ghost beside every array of their rows (`load(sanitize=True)`): whose state does a lane really find?

The proof says what a step does with the rows that it is given; the sanitizer sees whether these are the rows of the
sequences that the scheduler means: after every step it compares the labels that moved with the rows to those that the
host's own bookkeeping expects. It waits for each step.
"""

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hybridlm._batch import Batch
from hybridlm._rows import RowPool
from hybridlm._steps import Rows
from ir_passes import Label, LaneContract, RowLedger, SanitizedStep, Turn, prove_isolation, sanitize

Ghosts = tuple[jax.Array, ...]
Sanitized = tuple[SanitizedStep, Callable[..., Any]]
"""A step with its checks, and what runs it: (arguments, ghosts, expected) -> (outputs, rows, ghosts, verdict)."""


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
        self._ghosts: weakref.WeakKeyDictionary[RowPool, Ghosts] = weakref.WeakKeyDictionary()
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
            None if owner is None else Turn(self._number(owner), int(positions[lane]), int(most[lane]))
            for lane, owner in enumerate(owners)
        ]
        expected = self._ledger.expect(turns)
        ghosts = self._of(pool)
        outputs, rows, ghosts, verdict = call((params, pool.take(), *batch, *operands), ghosts, expected)
        self._ghosts[pool] = ghosts
        step.require(verdict, expected)
        self.steps += 1
        if counts is None:
            self._shorten(pool, owners, most - np.asarray(outputs[0]))
        return outputs, rows

    def _shorten(self, pool: RowPool, owners: Sequence[Any], fewer: np.ndarray) -> None:
        """A step has consumed fewer tokens of each lane than it was given: what it left is labelled accordingly."""
        ghosts = [np.array(ghost) for ghost in self._ghosts[pool]]
        for lane, owner in enumerate(owners):
            if owner is not None and fewer[lane]:
                number = self._number(owner)
                left = self._ledger.label(number)
                label = left._replace(position=left.position - int(fewer[lane]))
                self._ledger.adopt(number, label)
                for ghost in ghosts:
                    ghost[(ghost == left).all(axis=1)] = label
        self._ghosts[pool] = tuple(jax.numpy.array(ghost) for ghost in ghosts)

    def copy(self, program: Sanitized, target: RowPool, source: RowPool, maps: tuple[Any, Any]) -> Rows:
        """Run the copy of a row, with its labels."""
        step, call = program
        expected = self._ledger.expect([None])
        into, out_of = self._of(target), self._of(source)
        rows, ghosts, verdict = call((target.take(), source.look(), *maps), (*into, *out_of), expected)
        self._ghosts[target], self._ghosts[source] = ghosts[: len(into)], ghosts[len(into) :]
        step.require(verdict, expected)
        return rows

    def program(
        self, shape: Any, step: Callable[..., Any], contract: LaneContract, arguments: Callable[[], tuple[Any, ...]]
    ) -> Sanitized:
        """A step, proved and with its ghosts; compiled when it is first called.

        Raises:
            IsolationError: it is not proved.
        """
        if shape not in self._programs:
            args = arguments()
            prove_isolation(step, args, contract)
            paths = [one.path for one in contract.bind(step, args).inputs]
            # What these hold when a sequence begins is masked by position, or not looked at before it was written.
            masked = [path for path in paths if ".layers" in path and path.endswith((".key", ".value", ".latent"))]
            masked += [path for path in paths if path.endswith(".token")]
            safe = sanitize(step, args, contract, masked=masked)

            def call(args: tuple[Any, ...], ghosts: Ghosts, expected: Any) -> Any:
                return safe.step(*args, ghosts=ghosts, expected=expected)

            self._programs[shape] = safe, jax.jit(call)
        return self._programs[shape]

    def forget(self, owner: Any) -> None:
        """A sequence or text gives up its rows."""
        number = self._numbers.pop(owner, None)
        if number is not None:
            self._ledger.forget(number)

    def mark(self, owner: Any) -> Label:
        """What the rows of a sequence say now, for a snapshot of them."""
        return self._ledger.label(self._number(owner))

    def adopt(self, owner: Any, mark: Label) -> None:
        """The rows of a sequence are now a copy of a snapshot."""
        self._ledger.adopt(self._number(owner), mark)

    def stamp(self, pool: RowPool, owner: Any, position: int) -> None:
        """Label all rows of a pool as what an owner left after so many tokens, in a step before the next one."""
        label = Label(self._number(owner), position, epoch=self._ledger.epoch)
        self._ledger.adopt(label.owner, label)
        rows = np.tile(np.array(label, np.int32), (pool.size, 1))
        self._ghosts[pool] = tuple(jax.numpy.array(rows) for _ in jax.tree.leaves(pool.look()))

    def _number(self, owner: Any) -> int:
        if owner not in self._numbers:
            self._numbers[owner] = next(self._next)
        return self._numbers[owner]

    def _of(self, pool: RowPool) -> Ghosts:
        """The ghosts of a pool: rows that nobody has written yet are fresh."""
        if pool not in self._ghosts:
            leaves = jax.tree.leaves(pool.look())
            self._ghosts[pool] = tuple(jax.numpy.zeros((pool.size, 4), jax.numpy.int32) for _ in leaves)
        return self._ghosts[pool]
