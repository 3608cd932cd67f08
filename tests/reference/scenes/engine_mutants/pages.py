"""Pages of the KV cache given back too early or never, shared, in old tables; wrong counts after a preemption."""

from collections.abc import Container, Sequence

import numpy as np
import pytest
from engine_mutants.mutant import EngineMutant, Finder

from hybridlm.engine.admission import Admission
from hybridlm.engine.scheduler import Scheduler
from hybridlm.requests.sequence import ActiveSequence
from hybridlm.rows.pages import RowPages
from hybridlm.rows.pool import RowPool


def given_back_too_early(patch: pytest.MonkeyPatch) -> None:
    """A row that gets its second page gives back the first, whose tokens are read."""
    right = RowPages.reserve

    def reserve(self: RowPages, row: int, positions: int) -> None:
        count = len(self._pages[row])
        right(self, row, positions)
        if count == 1 and len(self._pages[row]) == 2 and self.owner is not None:
            self.owner.release(self._pages[row][0])

    patch.setattr(RowPages, "reserve", reserve)


def one_page_for_two_lanes(patch: pytest.MonkeyPatch) -> None:
    right = RowPool.table

    def table(self: RowPool, lane_rows: Sequence[int], used: Container[int]) -> np.ndarray | None:
        pages = right(self, lane_rows, used)
        if pages is None or len(pages) < 2 or not pages[:2, 0].all():
            return pages
        pages = pages.copy()
        pages[1, 0] = pages[0, 0]
        return pages

    patch.setattr(RowPool, "table", table)


def table_of_an_earlier_sequence(patch: pytest.MonkeyPatch) -> None:
    """The device keeps the table of a row until its number of pages changes."""
    right = RowPool.table
    masks: dict[tuple[int, int], np.ndarray] = {}

    def table(self: RowPool, lane_rows: Sequence[int], used: Container[int]) -> np.ndarray | None:
        pages = right(self, lane_rows, used)
        if pages is None:
            return None
        rows = [
            masks.setdefault((row, np.count_nonzero(lane)), lane) for row, lane in zip(lane_rows, pages, strict=True)
        ]
        return np.stack(rows)

    patch.setattr(RowPool, "table", table)


def preempted_keeps_its_pages(patch: pytest.MonkeyPatch) -> None:
    right = Scheduler._preempt

    def preempt(self: Scheduler, sequence: ActiveSequence, pool: RowPool) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(RowPages, "release", lambda self, row: None)
            right(self, sequence, pool)

    patch.setattr(Scheduler, "_preempt", preempt)


def grows_without_a_page(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "grow", lambda self, sequence, pool: True)


def resumes_with_a_stale_count(patch: pytest.MonkeyPatch) -> None:
    """A preempted sequence goes on at its old position, in an empty row."""
    right = ActiveSequence.begin

    def begin(self: ActiveSequence) -> None:
        consumed = self.consumed
        right(self)
        self.consumed = min(consumed, len(self.prompt) - 1)

    patch.setattr(ActiveSequence, "begin", begin)


def resumes_without_its_tokens(patch: pytest.MonkeyPatch) -> None:
    """A preempted sequence reads its prompt alone, and samples its first tokens once more."""
    right = ActiveSequence.begin

    def begin(self: ActiveSequence) -> None:
        right(self)
        self.prompt = self.request.prompt

    patch.setattr(ActiveSequence, "begin", begin)


MUTANTS = (
    EngineMutant(
        "page-given-back-too-early", "vLLM#52360", "a page is free while its sequence reads it",
        Finder.OWNER, given_back_too_early,
    ),
    EngineMutant(
        "two-lanes-with-one-page", "MinivLLM#98", "the page tables of two lanes name one page",
        Finder.KERNEL, one_page_for_two_lanes,
    ),
    EngineMutant(
        "table-of-an-earlier-sequence", "vllm-rbln#676", "a row has the page table of the sequence that was preempted",
        Finder.KERNEL, table_of_an_earlier_sequence,
    ),
    EngineMutant(
        "preempted-keeps-its-pages", "vLLM#46283", "a preempted sequence gives back its row alone",
        Finder.OWNER, preempted_keeps_its_pages,
    ),
    EngineMutant(
        "grows-without-a-page", "sparkinfer#185", "a sequence goes on behind its last page",
        Finder.OWNER, grows_without_a_page,
    ),
    EngineMutant(
        "resumes-with-a-stale-count", "LMCache#2158", "a preempted sequence goes on at its old position without state",
        Finder.ALONE, resumes_with_a_stale_count,
    ),
    EngineMutant(
        "resumes-without-its-tokens", "vllm-ascend#11334", "a preempted sequence reads its prompt alone",
        Finder.ALONE, resumes_without_its_tokens,
    ),
)  # fmt: skip
