"""The responsible check finds every engine mutant in the same traffic, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
from engine_mutants import traffic
from engine_mutants.catalogue import COMMITTED, HOSTS, KEPT, LAYERS, MUTANTS, PAGED, STEPS, THEMES
from engine_mutants.mutant import Finder
from engine_mutants.reports import MECHANISMS, MIXED_BATCHES, PREFIXES, REPORTS, ROLLBACK
from engine_mutants.table import table
from mutants.catalogue import MUTANTS as STEP_MUTANTS

import hybridlm

SANITIZED = [id for id, mutant in MUTANTS.items() if mutant.finder is Finder.SANITIZER]
ALL = {*MUTANTS, *STEPS, *HOSTS, *KEPT, *PAGED, *LAYERS, *COMMITTED}


@pytest.fixture(scope="module")
def alones(text_lm: hybridlm.LM) -> list[traffic.Alone]:
    return traffic.alone(text_lm)


@pytest.mark.slow
def test_nothing_is_wrong_with_the_engine(text_lm: hybridlm.LM, alones: list[traffic.Alone]) -> None:
    assert traffic.finder(text_lm, alones) is None
    reasons = [completion.finish_reason for completion in alones]
    assert reasons.count("stop") >= 2 and reasons.count("length") >= 5


@pytest.mark.slow
@pytest.mark.parametrize("id", [id for id in MUTANTS if id not in SANITIZED])
def test_mutant_is_found(text_lm: hybridlm.LM, alones: list[traffic.Alone], id: str, monkeypatch: pytest.MonkeyPatch):
    MUTANTS[id].fault(monkeypatch)
    assert traffic.finder(text_lm, alones) is MUTANTS[id].finder


@pytest.fixture(scope="module")
def alone_of_cache(text_lm: hybridlm.LM) -> list[traffic.Alone]:
    return traffic.alone(text_lm, traffic.WITH_CACHE)


@pytest.mark.slow
def test_nothing_is_wrong_with_the_cache(cached_lm: hybridlm.LM, alone_of_cache: list[traffic.Alone]) -> None:
    saved = cached_lm.stats["prefix_tokens_saved"]
    assert traffic.finder(cached_lm, alone_of_cache) is None
    assert cached_lm.stats["prefix_hits"] >= 8 and cached_lm.stats["prefix_tokens_saved"] - saved > 80
    assert cached_lm.stats["prefix_spills"] > 5, "some of them were on the host"


@pytest.mark.slow
@pytest.mark.parametrize("id", KEPT)
def test_mutant_of_the_cache_is_found(
    cached_lm: hybridlm.LM, alone_of_cache: list[traffic.Alone], id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    KEPT[id].fault(monkeypatch)
    assert traffic.finder(cached_lm, alone_of_cache) is KEPT[id].finder


@pytest.fixture(scope="module")
def paged_lm(text_lm: hybridlm.LM) -> hybridlm.LM:
    """The same model with few pages of KV cache for all lanes."""
    settings: dict[str, Any] = {"lanes": 3, "context": 512, "dtype": "float32", "chunk": 32, "certify": "off"}
    return hybridlm.load(text_lm.path, cache=traffic.PAGES * 128, **settings)


@pytest.fixture(scope="module")
def alone_in_pages(paged_lm: hybridlm.LM) -> list[traffic.Alone]:
    return traffic.alone(paged_lm, traffic.IN_FEW_PAGES)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*was preempted after")
def test_nothing_is_wrong_with_the_pages(paged_lm: hybridlm.LM, alone_in_pages: list[traffic.Alone]) -> None:
    preemptions = paged_lm.stats["preemptions"]
    assert traffic.finder(paged_lm, alone_in_pages) is None
    assert paged_lm.stats["preemptions"] > preemptions


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*was preempted after")
@pytest.mark.parametrize("id", PAGED)
def test_mutant_of_the_pages_is_found(
    paged_lm: hybridlm.LM, alone_in_pages: list[traffic.Alone], id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    PAGED[id].fault(monkeypatch)
    assert traffic.finder(paged_lm, alone_in_pages) is PAGED[id].finder


@pytest.mark.long
def test_the_sanitizer_finds_nothing_wrong(sanitized_lm: hybridlm.LM, alones: list[traffic.Alone]) -> None:
    assert traffic.finder(sanitized_lm, alones) is None


@pytest.mark.long
@pytest.mark.parametrize("id", SANITIZED)
def test_mutant_is_found_by_the_sanitizer(sanitized_lm: hybridlm.LM, id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[id].fault(monkeypatch)
    assert traffic.finder(sanitized_lm, []) is Finder.SANITIZER


def test_ids_are_unique() -> None:
    assert len(MUTANTS) == sum(len(theme.MUTANTS) for theme in THEMES)
    assert len(ALL) == sum(map(len, (MUTANTS, STEPS, HOSTS, KEPT, PAGED, LAYERS, COMMITTED)))


def test_every_report_has_something_that_stands_against_it(root: Path) -> None:
    assert len({report.id for report in REPORTS}) == len(REPORTS) == 40
    for report in (*REPORTS, *MIXED_BATCHES, *ROLLBACK, *PREFIXES, *MECHANISMS.values()):
        assert set(report.engine) <= ALL and set(report.compiler) <= set(STEP_MUTANTS), report.id
        assert report.engine or report.compiler or report.tests or report.cannot, report.id
        for test in report.tests:
            file, _, name = test.partition("::")
            assert f"\ndef {name}(" in (root / file).read_text(), test


def test_every_mechanism_has_a_mutant_or_a_reason() -> None:
    for number, report in MECHANISMS.items():
        assert report.engine or report.compiler or report.cannot, f"{number}, {report.id}: no mutant, and no reason"
        assert not (report.cannot and (report.engine or report.compiler)), report.id


def test_table_has_a_line_for_each_mutant_and_report() -> None:
    lines = [line for line in table().splitlines() if line.startswith("| ")]
    for id in ALL:
        assert sum(line.startswith(f"| {id} |") for line in lines) == 1, id
    for report in (*REPORTS, *MIXED_BATCHES, *ROLLBACK, *PREFIXES):
        assert any(line.startswith(f"| {report.id} |") for line in lines), report.id
    for number, report in MECHANISMS.items():
        assert any(line.startswith(f"| {number} | {report.id} |") for line in lines), report.id
