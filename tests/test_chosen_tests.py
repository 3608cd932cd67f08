"""Shares lose no test and run none twice; of each test some sets of parameters run, of products each value."""

import os
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import chosen_tests
import pytest

TESTS = """
import pytest

@pytest.mark.parametrize("b", [True, False])
@pytest.mark.parametrize("a", range(7))
def test_product(a, b): pass

@pytest.mark.parametrize("size", ["one-two", "three", "four"])
def test_sizes(size): pass

@pytest.mark.each_value
@pytest.mark.parametrize("c", [0.5, None])
@pytest.mark.parametrize("b", "xyz")
@pytest.mark.parametrize("a", range(4))
def test_values(a, b, c): pass

@pytest.mark.each_value
@pytest.mark.parametrize("b", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("a", ["p", "q"])
def test_values_some_of_them_long(a, b): pass

def test_alone(): pass

@pytest.mark.long
def test_long(): pass
"""
Chosen = Callable[..., list[str]]


class Collected:
    """A plugin that notes the tests that would run."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.names = [item.nodeid.partition("::")[2] for item in session.items]


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chosen:
    """The names of the tests that options choose."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    (tmp_path / "test_of_a_choice.py").write_text(TESTS)
    settings = ["--import-mode=importlib", "--collect-only", "--capture=no", "-p", "no:cacheprovider", "-W", "ignore"]

    def names(*options: str) -> list[str]:
        collected = Collected()
        arguments = [*settings, "-c", os.devnull, "--rootdir", str(tmp_path), *options, str(tmp_path)]
        code = pytest.main(arguments, plugins=[chosen_tests, collected])
        assert code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        return collected.names

    return names


def test_without_options_all_run(chosen: Chosen) -> None:
    names = chosen()
    assert len(names) == len(set(names)) == 14 + 3 + 24 + 4 + 2


@pytest.mark.parametrize("shares", [1, 2, 3, 5, 8])
def test_shares_have_every_test_once(chosen: Chosen, shares: int) -> None:
    parts = [chosen("--share", f"{number}/{shares}") for number in range(shares)]
    assert sorted(name for part in parts for name in part) == sorted(chosen())
    assert sum(map(bool, parts)) > shares / 2
    # Days are counted on.
    assert chosen("--share", f"{shares + 1}/{shares}") == parts[1 % shares]
    # What a fixture makes for a first parameter is made in one of them.
    for first in range(7):
        assert sum(any(name.startswith(f"test_product[{first}-") for name in part) for part in parts) == 1


def test_a_share_of_what_a_mark_chooses_is_a_share_of_the_tests(chosen: Chosen) -> None:
    for mark in ("long", "not long"):
        parts = [chosen("--share", f"{number}/3", "-m", mark) for number in range(3)]
        assert sorted(name for part in parts for name in part) == sorted(chosen("-m", mark))


@pytest.mark.parametrize("wanted", [1, 2, 3, 14, 20])
def test_some_of_each_test(chosen: Chosen, wanted: int) -> None:
    every, some = chosen(), chosen("--of-each", str(wanted))
    assert [name for name in every if name in some] == some
    for test in {name.partition("[")[0] for name in every}:
        sets = [name for name in every if name.partition("[")[0] == test]
        kept = [name for name in some if name.partition("[")[0] == test]
        assert len(kept) == min(wanted, len(sets)) and kept[0] == sets[0]
        assert wanted == 1 or kept[-1] == sets[-1]


def test_of_a_product_each_value_runs(chosen: Chosen) -> None:
    def sets(*options: str) -> set[tuple[str, ...]]:
        names = [re.fullmatch(r"test_values\[(.+)\]", name) for name in chosen(*options)]
        return {tuple(found[1].split("-")) for found in names if found is not None}

    few, rest = sets("-m", "not long"), sets("-m", "long")
    assert [set(values) for values in zip(*few, strict=True)] == [set("0123"), set("xyz"), {"0.5", "None"}]
    assert len(few) == 4, "the values of the longest parameter, each once"
    assert few | rest == set(product("0123", "xyz", ("0.5", "None"))) and not few & rest


def test_what_is_long_is_no_value_of_a_product(chosen: Chosen) -> None:
    few = [name for name in chosen("-m", "not long") if "some_of_them_long" in name]
    assert few == ["test_values_some_of_them_long[p-1]", "test_values_some_of_them_long[q-1]"]


def test_marks_leave_no_test_out(chosen: Chosen) -> None:
    assert sorted(chosen("-m", "long") + chosen("-m", "not long")) == sorted(chosen())
