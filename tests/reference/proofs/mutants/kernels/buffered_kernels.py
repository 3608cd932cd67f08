"""Faults in kernels with two buffers: early reads, the other buffer, another lane.

Interpret mode copies when a copy starts. So a block that is read before its copy has ended is seen to leak only where
the copy never starts; the other faults are traced.
"""

from typing import Any

from jax import lax
from mutants.mutant import Evidence, Kind, wrong
from zoo.kernels.buffered_kernels import buffered, by_lane, paged
from zoo.program import LANES

LEAK, TRACED = Evidence.LEAK, Evidence.TRACED
BAD = (Kind.OPAQUE, Kind.CROSS_LANE, Kind.WRONG_ROW, Kind.UNINITIALIZED)


def _two(id: str, description: str, evidence: Evidence = TRACED, **changes: Any) -> Any:
    step, base = paged(buffered(**changes)), "kernel: two buffers, the other place"
    return wrong(base, f"kernel-buffer-{id}", "JAX", description, step, *BAD, evidence=evidence)


def _semaphore(id: str, description: str, **changes: Any) -> Any:
    step, base = by_lane(**changes), "kernel: a semaphore by lane"
    return wrong(base, f"kernel-semaphore-{id}", "JAX", description, step, *BAD, evidence=TRACED)


def _next(lane: Any) -> Any:
    return lax.rem(lane + 1, LANES)


MUTANTS = (
    _two("next-lane", "pages of the next lane", LEAK, page=lambda table, lane, number: table[_next(lane), number]),
    _two("no-first", "the first page is never copied", LEAK, condition=lambda blocks: blocks > 1),
    _two("no-next", "the next page is copied too seldom", LEAK, while_=lambda n, blocks: n + 2 < blocks),
    _two("first-place", "the first page is copied to the second place", LEAK, first=1),
    _two("no-wait", "no wait", waits=False),
    _two("early", "the page is read before the wait", early=True),
    _two("other", "the other place is read", LEAK, read=lambda place: 1 - place),
    _two("same-place", "the next page is copied to this place", LEAK, following=lambda n, place: place),
    _two("same-semaphore", "one semaphore for both copies", signal=lambda place: 0),
    _two("same-page", "the same page again", next_number=lambda n: n),
    _two("after-last", "a page after the last is copied", while_=lambda n, blocks: n < blocks),
    _two("always", "the next page is always copied", while_=lambda n, blocks: n >= 0),
    _two("before-none", "a page is copied for lanes without tokens", condition=lambda blocks: blocks >= 0),
    _two("stuck", "the carried place stays", carried=lambda place: place),
    _two("inner-other", "the other place is read token by token", LEAK, inner=True, read=lambda place: 1 - place),
    _two("three", "a third place", place=lambda n: lax.rem(n, 3), following=lambda n, place: lax.rem(n + 1, 3)),
    _two("static-early", "all pages, each read before the wait", static=True, early=True),
    _two("static-no-wait", "all pages, no wait", static=True, waits=False),
    _two("static-same", "all pages, one place", static=True, following=lambda n, place: place),
    _semaphore("other", "a wait at the other semaphore", other=lambda lane: 1 - lax.rem(lane, 2)),
    _semaphore("beyond", "a semaphore that is not there", semaphore=lambda lane: lax.rem(lane, 3)),
    _semaphore("unbounded", "a semaphore by lane", semaphore=lambda lane: lane),
)
