"""Requests of all kinds that join, move, are cancelled and leave, and what is wrong with a run of them.

Prompts shorter and longer than a chunk, of whole chunks and of one token more; greedy and sampled ones; two that stop
early, one that ends with its first token; one is cancelled while it waits and one while it decodes, and the rows of the
pool that decodes are moved while three sequences live in it.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from engine_mutants.mutant import Finder

import hybridlm
from hybridlm import _engine
from hybridlm._drafters import Drafter
from hybridlm._speculation import Speculation
from ir_passes import LedgerError, SanitizerError, SlotError

MOST_STEPS = 150
MOVED_AT = 9


class Asked(NamedTuple):
    """One request: it joins before step `at`; its prompt has `tokens` tokens."""

    at: int
    tokens: int
    settings: dict[str, Any]

    @property
    def prompt(self) -> list[int]:
        return [3 + (7 * i * i + 11 * self.tokens + 5 * self.at) % 90 for i in range(self.tokens)]


STOPS = list(range(3, 97, 4))
REQUESTS = (
    Asked(0, 12, {"max_tokens": 40}),
    Asked(0, 1, {"max_tokens": 8}),
    Asked(0, 5, {"max_tokens": 7, "temperature": 1.0, "seed": 5}),
    Asked(0, 6, {"max_tokens": 30, "stop": STOPS}),
    Asked(0, 2, {"max_tokens": 1}),
    Asked(2, 33, {"max_tokens": 16}),
    Asked(6, 11, {"max_tokens": 6, "temperature": 0.9, "top_k": 5, "seed": 9, "priority": 1}),
    Asked(8, 1, {"max_tokens": 6}),
    Asked(9, 10, {"max_tokens": 60}),
    Asked(9, 3, {"max_tokens": 9, "temperature": 1.2, "stop": STOPS}),
    Asked(12, 15, {"max_tokens": 5}),
)
CANCELLED = {17: 8, 42: 0}
"""By step, while it waits and while it decodes."""
CANCELLED_WITH_DRAFTS = {5: 2, 9: 8}
"""The first of them while a step verifies its drafts."""


class NeverEnded(AssertionError):
    """A request has not ended after as many steps as the traffic can need."""


class Changed(AssertionError):
    """A host array was written to after the step that reads it was dispatched."""


class Alone(NamedTuple):
    """What a request gives by itself, under its own number."""

    token_ids: list[int]
    finish_reason: str


def alone(lm: hybridlm.LM) -> list[Alone]:
    """Every request of the traffic in a session of its own."""
    found = []
    for index, asked in enumerate(REQUESTS):
        settings: Any = _free(asked.settings)
        with lm.session() as session:
            session.add(lm._inputs.request(index, asked.prompt, settings.pop("priority", 0), None, settings))
            ended = [event.completion for _ in range(MOST_STEPS) for event in session.step() if event.completion]
        found += [Alone(one.token_ids, one.finish_reason) for one in ended]
    return found


def run(lm: hybridlm.LM, speculate: Drafter | None = None) -> dict[int, Alone]:
    """The traffic; of every request what it was given.

    Args:
        lm: a model.
        speculate: who drafts; everything that is proposed is verified, and requests end earlier.

    Raises:
        SlotError, SanitizerError, NeverEnded, Changed: what is wrong with the run.
    """
    found: dict[int, Alone] = {}
    lm._engine._kept.clear()  # nothing of a run that had a fault
    cancelled = CANCELLED if speculate is None else CANCELLED_WITH_DRAFTS
    with pytest.MonkeyPatch.context() as patch, lm.session(speculate=speculate) as session:
        patch.setattr(Speculation, "always", True)
        watch = _Arrays(patch)
        for step in range(MOST_STEPS):
            for asked in REQUESTS:
                if asked.at == step:
                    session.submit(asked.prompt, **_free(asked.settings))
            if step in cancelled:
                session.cancel(cancelled[step])
            scheduler = session._scheduler
            if step == MOVED_AT and scheduler._decode is not None:
                while session._flights and session._flights[0].accepted is not None:
                    session._read()  # as the session itself does before rows move
                scheduler._resize(scheduler._decode.size)
            for event in session.step():
                if event.completion is not None:
                    found[event.index] = Alone(event.completion.token_ids, event.completion.finish_reason)
            session.check_integrity()
            if len(found) == len(REQUESTS):
                watch.check()
                return found
    raise NeverEnded(f"requests {sorted(set(range(len(REQUESTS))) - set(found))} have not ended")


def finder(lm: hybridlm.LM, want: list[Alone], speculate: Drafter | None = None) -> Finder | None:
    """Who finds something wrong with the traffic; None for a right run."""
    try:
        found = run(lm, speculate)
    except (SlotError, hybridlm.RowsLost):
        return Finder.OWNER
    except (SanitizerError, LedgerError):
        return Finder.SANITIZER
    except Changed:
        return Finder.ARRAYS
    except (NeverEnded, hybridlm.NumericalError):
        return Finder.ALONE
    return None if all(_agree(found[index], one) for index, one in enumerate(want)) else Finder.ALONE


def _agree(got: Alone, want: Alone) -> bool:
    if got.finish_reason == "cancelled":
        return got.token_ids == want.token_ids[: len(got.token_ids)]
    return got == want


def _free(settings: dict[str, Any]) -> dict[str, Any]:
    return {"ignore_eos": True, **settings}


class _Arrays:
    """The host arrays of every step and what they held when it was dispatched."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self._seen: list[tuple[np.ndarray, np.ndarray]] = []
        right = _engine._on_device

        def watched(operands: tuple[Any, ...]) -> list[Any]:
            self._seen += [(one, one.copy()) for one in jax.tree.leaves(operands) if isinstance(one, np.ndarray)]
            return right(operands)

        patch.setattr(_engine, "_on_device", watched)

    def check(self) -> None:
        for array, held in self._seen:
            if not np.array_equal(array, held):
                raise Changed(f"held {held.tolist()} when a step was dispatched, holds {array.tolist()} now")
