"""The responsible check finds every engine mutant in the same traffic, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
from engine_mutants import traffic
from engine_mutants.catalogue import COMMITTED, HOSTS, KEPT, LAYERS, MUTANTS, PAGED, STEPS, THEMES
from engine_mutants.mechanisms import MECHANISMS
from engine_mutants.mutant import Finder
from engine_mutants.prefix_reports import PREFIXES
from engine_mutants.reports import REPORTS
from engine_mutants.rollback_reports import MIXED_BATCHES, ROLLBACK
from engine_mutants.table import table
from mutants.catalogue import MUTANTS as STEP_MUTANTS

import hybridlm

SANITIZED = [id for id, mutant in MUTANTS.items() if mutant.finder is Finder.SANITIZER]
ALL = {*MUTANTS, *STEPS, *HOSTS, *KEPT, *PAGED, *LAYERS, *COMMITTED}
KNOWN = {
    "mixed batches": """vLLM#39273 vLLM#40738 vLLM#51812 vLLM#40766 vLLM#55894 vLLM#47123 SGLang#39342 vLLM#34871""",
    "rollback": """SGLang#26351 vLLM#51508 xLLM#2247 llama.cpp#28019 llama.cpp#29117 vLLM#55178 turboquant#352
        vllm-ascend#11262 SGLang_hybrid_linear_attn_backend""",
    "prefixes": """SGLang#31833 vLLM#43559 SGLang#31369 vLLM#56196 vLLM#43090 vLLM#53142 SGLang#34820 vLLM#53505
        SGLang#29973 vLLM#57267""",
    "a ring of states": "Atlas#141",
    "layout beside the state": "SGLang#288",
}
"""The public reports of states that are taken back or kept: every one of them has to stand in the tables."""


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


NUMBERS = """
1 2 3 4 5 8 11 12 13 14 15 16 17 20 23 24 25 26 27 28 29 30 32 36 37 38 39 40 41 42 44 45 46 47 48 49 53 54 55 56 57 58
63 64 65 66 67 69 70 71 74 76 77 78 79 80 83 86 87 91
"""


def test_every_mechanism_is_in_the_table() -> None:
    assert list(MECHANISMS) == [int(number) for number in NUMBERS.split()] and len(MECHANISMS) == 60
    for number, report in MECHANISMS.items():
        assert report.engine or report.compiler or report.cannot, f"{number}, {report.id}: no mutant, and no reason"
        assert not (report.cannot and (report.engine or report.compiler)), report.id


@pytest.mark.parametrize("theme", KNOWN)
def test_no_known_report_is_left_out(theme: str) -> None:
    table = {id.replace("_", " ", 1) for id in KNOWN[theme].split()}
    assert not table - {report.id for report in (*MIXED_BATCHES, *ROLLBACK, *PREFIXES)}


def test_table_has_a_line_for_each_mutant_and_report() -> None:
    lines = [line for line in table().splitlines() if line.startswith("| ")]
    for id in ALL:
        assert sum(line.startswith(f"| {id} |") for line in lines) == 1, id
    for report in (*REPORTS, *MIXED_BATCHES, *ROLLBACK, *PREFIXES):
        assert any(line.startswith(f"| {report.id} |") for line in lines), report.id
    for number, report in MECHANISMS.items():
        assert any(line.startswith(f"| {number} | {report.id} |") for line in lines), report.id
