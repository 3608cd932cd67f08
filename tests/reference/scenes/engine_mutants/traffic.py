"""Requests of all kinds that join, move, cancel and leave, with checks.

Prompts shorter and longer than a chunk, of whole chunks and of one token more; greedy and sampled ones; two that stop
early, one that ends with its first token; one is cancelled while it waits and one while it decodes, and
decode steps get fewer lanes. With a prefix cache others run: conversations that go on,
prompts that come again, and prompts that part after some tokens, in a cache that moves states to the host. With few
pages of KV cache long ones run, of which some are preempted.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from engine_mutants.mutant import Finder

import hybridlm
from hybridlm.drafting.drafters import Drafter
from hybridlm.engine import scheduler
from hybridlm.engine.speculation import Speculation
from hybridlm.prefix_cache.budget import CacheBudget
from hybridlm.prefix_cache.cache import PrefixCache
from hybridlm.prefix_cache.radix_tree import TreeError
from hybridlm.programs.runner import Runner
from ir_passes import SlotError, SlotFault
from ir_passes.sanitizer.verdict import SanitizerError

MOST_STEPS = 150
LANES = {9: 1, 47: 2, 52: 1}
"""Lanes of decode steps from a step of the traffic on, or as many as are needed."""


class Asked(NamedTuple):
    """One request: it joins before `step`; its prompt has `tokens` tokens, or is `token_ids`."""

    step: int
    tokens: int
    settings: dict[str, Any]
    token_ids: tuple[int, ...] = ()

    @property
    def prompt(self) -> list[int]:
        if self.token_ids:
            return list(self.token_ids)
        return [3 + (7 * i * i + 11 * self.tokens + 5 * self.step) % 90 for i in range(self.tokens)]


STOPS = list(range(3, 97, 4))
REQUESTS = (
    Asked(0, 12, {"max_tokens": 40}),
    Asked(0, 1, {"max_tokens": 8}),
    Asked(0, 5, {"max_tokens": 7, "temperature": 1.0, "seed": 5}),
    Asked(0, 6, {"max_tokens": 30, "stop": STOPS}),
    Asked(0, 2, {"max_tokens": 1}),
    Asked(2, 53, {"max_tokens": 16}),  # others decode before its prompt ends
    Asked(6, 11, {"max_tokens": 6, "temperature": 0.9, "top_k": 5, "seed": 9, "priority": 1}),
    Asked(8, 1, {"max_tokens": 6}),
    Asked(9, 10, {"max_tokens": 60}),
    Asked(9, 3, {"max_tokens": 9, "temperature": 1.2, "seed": 0, "stop": STOPS}),
    Asked(12, 15, {"max_tokens": 14, "temperature": 0.8, "seed": 2}),  # the lane before its own gets idle
)
STEMS = tuple(tuple(3 + (5 * i * i + 17 * i + 7 * stem) % 90 for i in range(40)) for stem in range(4))
A, B = (*STEMS[0][:11], 40), (*STEMS[1][:8], 41)
WITH_CACHE = tuple(
    Asked(step, len(prompt), settings, prompt)
    for step, prompt, settings in (
        (0, A, {"max_tokens": 12}),
        (0, B, {"max_tokens": 6}),
        (0, STEMS[2][:16], {"max_tokens": 4}),
        (10, (*STEMS[0][:16], 42), {"max_tokens": 6}),  # parts from A after 11 tokens
        (10, B, {"max_tokens": 9, "temperature": 1.0, "seed": 3}),
        (16, (*A, *STEMS[3][:9]), {"max_tokens": 8}),  # continues A without its end
        (17, (*STEMS[1][:7], *STEMS[2][:11]), {"max_tokens": 7}),
        (22, (*STEMS[0][:16], 43, 44), {"max_tokens": 8}),
        (24, (*STEMS[2][:16], *STEMS[3][:2]), {"max_tokens": 9}),
        (26, (*A, *STEMS[3][:9], 45), {"max_tokens": 5}),
        (26, STEMS[2][:16], {"max_tokens": 6}),
        (34, (*STEMS[0][:16], 43, 44, 45, 46), {"max_tokens": 8}),
        (36, (*B, 47), {"max_tokens": 5}),
        (36, A, {"max_tokens": 5}),
        (44, (*A, *STEMS[3][:14]), {"max_tokens": 8}),
    )
)
IN_FEW_PAGES = (
    Asked(0, 122, {"max_tokens": 30}),
    Asked(0, 120, {"max_tokens": 30}),
    Asked(0, 125, {"max_tokens": 25, "temperature": 1.0, "seed": 4}),
    Asked(3, 100, {"max_tokens": 40}),
    Asked(8, 250, {"max_tokens": 12}),
    Asked(10, 5, {"max_tokens": 20}),
    Asked(20, 126, {"max_tokens": 20, "temperature": 0.8, "seed": 1, "priority": 1}),
)
PAGES = 5
BUDGET = CacheBudget(device=90_000, host=400_000)
CANCELLED = {17: 8, 42: 5}
"""Cancelled requests by step: one while it waits, one while it decodes."""
LEDGER = frozenset({SlotFault.OWNER, SlotFault.TWO_LANES, SlotFault.NO_LABEL})
"""Faults of the ledger of the sanitizer, not of the owner of the rows."""
CANCELLED_WITH_DRAFTS = {4: 2, 9: 8}
"""The first of them while a step verifies its drafts."""
CANCELLED_IN_FEW_PAGES = {60: 3}
CANCELLED_WITH_CACHE = {1: 2, 21: 5}
"""Cancelled requests by step: one while its prompt is read, one while it decodes."""


class NeverEnded(AssertionError):
    """A request has not ended after as many steps as the traffic can need."""


class Changed(AssertionError):
    """A host array was written to after the step that reads it was dispatched."""


class Alone(NamedTuple):
    """Result of a request by itself, under its own number."""

    token_ids: list[int]
    finish_reason: str


def requests(lm: hybridlm.LM) -> tuple[Asked, ...]:
    """The traffic of a model: whether it has few pages or a prefix cache decides."""
    if lm.engine.page_limit is not None:
        return IN_FEW_PAGES
    return REQUESTS if lm.engine.prefix_cache is None else WITH_CACHE


def alone(lm: hybridlm.LM, asked_of: tuple[Asked, ...] = REQUESTS) -> list[Alone]:
    """Run every request of a traffic in a separate session."""
    results = []
    for index, request in enumerate(asked_of):
        settings: Any = _free(request.settings)
        with lm.session() as session:
            priority = settings.pop("priority", 0)
            session.add(
                lm.text_model.inputs.request(index, request.prompt, hybridlm.SamplingParams(**settings), priority)
            )
            ended = [event.completion for _ in range(MOST_STEPS) for event in session.step() if event.completion]
        results += [Alone(completion.token_ids, completion.finish_reason) for completion in ended]
    return results


def run(lm: hybridlm.LM, speculate: Drafter | None = None) -> dict[int, Alone]:
    """Run the traffic; return each request's results.

    Args:
        lm: a model.
        speculate: the drafter; all proposals are verified, and requests end earlier.

    Raises:
        SlotError, SanitizerError, SnapshotError, TreeError, NeverEnded, Changed: the run has a fault.
    """
    results: dict[int, Alone] = {}
    engine, asked_of = lm.engine, requests(lm)
    engine._pool = None  # nothing of a run that had a fault
    cancelled = CANCELLED if speculate is None else CANCELLED_WITH_DRAFTS
    if engine.prefix_cache is not None:
        engine.prefix_cache, cancelled = PrefixCache(engine.moves, BUDGET, engine.chunk), CANCELLED_WITH_CACHE
    if engine.page_limit is not None:
        cancelled = CANCELLED_IN_FEW_PAGES
    with pytest.MonkeyPatch.context() as patch, lm.session(speculate=speculate) as session:
        patch.setattr(Speculation, "always", True)
        if engine.page_limit is not None:
            patch.setattr(scheduler, "ROOM", 3)
        watch = _Arrays(patch)
        for step in range(MOST_STEPS):
            for request in asked_of:
                if request.step == step:
                    session.submit(request.prompt, **_free(request.settings))
            if step in cancelled and cancelled[step] in session._alive:
                session.cancel(cancelled[step])
            queue = session._scheduler
            if step in LANES and queue.decoding and engine.page_limit is None:
                queue._decode_lanes = LANES[step]
            for event in session.step():
                if event.completion is not None:
                    results[event.index] = Alone(event.completion.token_ids, event.completion.finish_reason)
            session.check_integrity()
            if len(results) == len(asked_of):
                watch.check()
                return results
    raise NeverEnded(f"requests {sorted(set(range(len(asked_of))) - set(results))} have not ended")


def finder(lm: hybridlm.LM, want: list[Alone], speculate: Drafter | None = None) -> Finder | None:
    """Return the check that finds a fault of the traffic, None for a right run."""
    try:
        results = run(lm, speculate)
    except SlotError as error:
        return Finder.SANITIZER if LEDGER.issuperset(error.ids) else Finder.OWNER
    except hybridlm.RowsLost:
        return Finder.OWNER
    except SanitizerError:
        return Finder.SANITIZER
    except (hybridlm.SnapshotError, TreeError):
        return Finder.LABEL
    except jax.errors.JaxRuntimeError:
        return Finder.KERNEL
    except Changed:
        return Finder.ARRAYS
    except (NeverEnded, hybridlm.NumericalError):
        return Finder.ALONE
    finally:
        pool = lm.engine._pool
        if pool is not None and pool.arrays is not None:
            pool.take()  # the next run has another pool: a fault may keep rows of this one
    return None if all(_agree(results[index], expected) for index, expected in enumerate(want)) else Finder.ALONE


def _agree(got: Alone, want: Alone) -> bool:
    if got.finish_reason == "cancelled":
        return got.token_ids == want.token_ids[: len(got.token_ids)]
    return got == want


def _free(settings: dict[str, Any]) -> dict[str, Any]:
    return {"ignore_eos": True, **settings}


class _Arrays:
    """Host arrays of every step and their contents at dispatch."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self._seen: list[tuple[np.ndarray, np.ndarray]] = []
        right = Runner._call

        def watched(runner: Runner, program: Any, *args: Any) -> Any:
            self._seen += [(array, array.copy()) for array in jax.tree.leaves(args) if isinstance(array, np.ndarray)]
            return right(runner, program, *args)

        patch.setattr(Runner, "_call", watched)

    def check(self) -> None:
        for array, copy in self._seen:
            if not np.array_equal(array, copy):
                raise Changed(f"held {copy.tolist()} when a step was dispatched, holds {array.tolist()} now")
