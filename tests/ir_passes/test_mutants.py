"""The right tier kills every mutant, and leaky mutants leak when run."""

from collections import Counter

import pytest
from isolation_oracle import leaks
from mutants.catalogue import MUTANTS, THEMES
from mutants.mutant import Evidence, Mutant, Tier
from mutants.tenants import honest
from mutants.verdict import Survived, kill, table
from zoo.catalogue import PROGRAMS

LEAKING = [[c.id for c in theme.MUTANTS if c.tier is Tier.PROOF and c.evidence is Evidence.LEAK] for theme in THEMES]
"""Ids of leaking mutants by theme. The leak is shown by running them, without any code of the packages."""


@pytest.mark.parametrize("id", MUTANTS)
def test_mutant_is_killed_by_its_tier(id: str) -> None:
    kill(MUTANTS[id])


@pytest.mark.parametrize(
    "id", [pytest.param(id, marks=[pytest.mark.long] * bool(i)) for theme in LEAKING for i, id in enumerate(theme)]
)
def test_mutant_leaks(id: str) -> None:
    program = MUTANTS[id].program
    assert program is not None
    assert leaks(program.step, program.contract, program.draw, seeds=range(16), first=True)


def test_table_has_a_line_for_each_mutant() -> None:
    mutants = list(MUTANTS.values())
    text = table(mutants, [f"found {i}" for i in range(len(mutants))])
    for i, mutant in enumerate(mutants):
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {mutant.id} |")]
        assert line.endswith(f"| found {i} |") and line.replace("\\|", "").count("|") == 6


REPORTS = set(
    """
    tpu-inference#2752 tpu-inference#2469 sglang-jax#1503 tokenspeed#700 vllm#51508
    tpu-inference#3453 tpu-inference#3565 tpu-inference#2431 kekzl/imp#500 club-3090#920
    xla#49176 xla#46543 xla#45912 jax#37830 pytorch#198031
    FreeToken#287
    """.split()
)
"""Public reports of state that crossed sequences in JAX and XLA programs, or would have; each has its mutant."""


def test_there_are_enough() -> None:
    assert len(MUTANTS) == sum(len(theme.MUTANTS) for theme in THEMES), "two mutants have one id"
    tiers = Counter(mutant.tier for mutant in MUTANTS.values())
    assert tiers[Tier.PROOF] >= 50
    assert all(tiers[tier] >= 5 for tier in Tier), tiers
    assert REPORTS <= {source for mutant in MUTANTS.values() for source in mutant.source.split(", ")}


def test_base_programs_exist() -> None:
    for mutant in MUTANTS.values():
        assert mutant.tier is not Tier.PROOF or mutant.base in PROGRAMS, mutant.id


def test_right_steps_on_right_rows_are_no_fault() -> None:
    honest()


def test_mutant_that_survives_is_reported() -> None:
    right = PROGRAMS["rows behind a slot map"]
    with pytest.raises(Survived, match="was not found by the tier proof"):
        kill(Mutant("right", "none", "nothing is wrong", right.name, Tier.PROOF, right))
    with pytest.raises(Survived, match="expected one of"):
        kill(Mutant("other", "none", "found for another reason", right.name, Tier.PROOF, MUTANTS["roll"].program))
