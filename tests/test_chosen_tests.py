"""Default tests, `--rest` and shares partition all tests; products cover each value."""

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

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_one_size_is_slow(size): pass

@pytest.mark.long
def test_long(): pass
"""
SETTINGS = """
[pytest]
testpaths = .
addopts = -m="not long"
markers =
    each_value: ...
    long: ...
    slow: ...
"""
NO_PLUGINS = ("cacheprovider", "unraisableexception", "threadexception")
"""The last two collect garbage ten times a run, which takes seconds in a large process."""
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
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_of_a_choice.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    settings = ["--import-mode=importlib", "--collect-only", "--capture=no", "-W", "ignore"]
    settings += [f"-pno:{plugin}" for plugin in NO_PLUGINS]

    def names(*options: str) -> list[str]:
        collected = Collected()
        code = pytest.main([*settings, *options], plugins=[chosen_tests, collected])
        assert code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        return collected.names

    return names


EVERY = ("-m", "long or not long")


def test_a_path_or_marks_choose_all_sets_of_parameters(chosen: Chosen) -> None:
    names = chosen(*EVERY)
    assert len(names) == len(set(names)) == 14 + 3 + 24 + 4 + 1 + 1 + 2 + 1
    assert sorted(chosen("-m", "long") + chosen("-m", "not long or slow")) == sorted(names)
    assert sorted(chosen("test_of_a_choice.py")) == sorted(chosen("-m", "not long or slow"))


def test_default_tests_are_one_set_of_parameters_of_each_quick_test(chosen: Chosen) -> None:
    names = chosen()
    quick = {"alone", "one_size_is_slow", "product", "sizes", "values", "values_some_of_them_long"}
    assert len(names) == len(quick) and {name.partition("[")[0] for name in names} == {f"test_{test}" for test in quick}
    assert "test_one_size_is_slow[1]" in names


def test_the_rest_are_all_tests_but_the_default_ones(chosen: Chosen) -> None:
    default, rest = chosen(), chosen("--rest")
    assert not set(default) & set(rest)
    assert sorted(default + rest) == sorted(chosen("test_of_a_choice.py"))
    assert sorted(chosen("--rest", "test_of_a_choice.py")) == sorted(rest)


@pytest.mark.parametrize("shares", [1, 3])
def test_shares_have_every_test_once(chosen: Chosen, shares: int) -> None:
    parts = [chosen(*EVERY, "--share", f"{number}/{shares}") for number in range(shares)]
    assert sorted(name for part in parts for name in part) == sorted(chosen(*EVERY))
    assert sum(map(bool, parts)) > shares / 2
    # Days are counted on.
    assert chosen(*EVERY, "--share", f"{shares + 1}/{shares}") == parts[1 % shares]
    # A fixture's work for a first parameter counts in one of them.
    for first in range(7):
        assert sum(any(name.startswith(f"test_product[{first}-") for name in part) for part in parts) == 1


def test_a_share_of_a_mark_is_a_share_of_its_tests(chosen: Chosen) -> None:
    parts = [chosen("--share", f"{number}/2", "-m", "long") for number in range(2)]
    assert sorted(name for part in parts for name in part) == sorted(chosen("-m", "long"))


@pytest.mark.parametrize("wanted", [1, 2, 14])
def test_some_of_each_test_differ_in_all_parameters(chosen: Chosen, wanted: int) -> None:
    every, some = chosen(*EVERY), chosen(*EVERY, "--of-each", str(wanted))
    assert [name for name in every if name in some] == some
    for test in {name.partition("[")[0] for name in every}:
        sets = [name for name in every if name.partition("[")[0] == test]
        assert len([name for name in some if name.partition("[")[0] == test]) == min(wanted, len(sets))
    if wanted == 2:
        first, second = (name.partition("[")[2].split("-") for name in some if name.startswith("test_product"))
        assert first[0] != second[0] and first[1] != second[1]


def test_of_a_product_each_value_runs(chosen: Chosen) -> None:
    def sets(*options: str) -> set[tuple[str, ...]]:
        names = [re.fullmatch(r"test_values\[(.+)\]", name) for name in chosen(*options)]
        return {tuple(name[1].split("-")) for name in names if name is not None}

    small, rest = sets("test_of_a_choice.py"), sets("-m", "long")
    assert [set(values) for values in zip(*small, strict=True)] == [set("0123"), set("xyz"), {"0.5", "None"}]
    assert len(small) == 4, "the values of the longest parameter, each once"
    assert small | rest == set(product("0123", "xyz", ("0.5", "None"))) and not small & rest


def test_what_is_long_is_no_value_of_a_product(chosen: Chosen) -> None:
    names = [name for name in chosen("test_of_a_choice.py") if "some_of_them_long" in name]
    assert names == ["test_values_some_of_them_long[p-1]", "test_values_some_of_them_long[q-1]"]
