"""Choose the tests of a run: the default tests, `--rest`, `--of-each`, `--share`, `each_value`.

`pytest` without a path, `-m`, `-k` or an option of this file runs the default tests: one set of parameters of each test
that is not marked `slow`. `pytest PATH` runs all sets of parameters, and `--rest` those that are no default tests.
"""

import itertools
import zlib
from collections.abc import Iterator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--of-each", type=int, metavar="N", help="run at most N sets of parameters of each test")
    parser.addoption(
        "--rest", action="store_true", help="leave out the default tests, which `pytest` without options runs"
    )
    parser.addoption("--share", metavar="K/N", help="run one of N shares of the tests: number K modulo N")


def chooses_nothing(config: pytest.Config) -> bool:
    """Return True if no path, mark, keyword or option of this file chooses tests."""
    option = config.option
    return (
        config.args_source is pytest.Config.ArgsSource.TESTPATHS
        and f"-m={option.markexpr}" in config.getini("addopts")
        and not (option.keyword or option.of_each or option.share or option.rest)
    )


def groups_of(items: list[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """Return the sets of parameters of each test."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return groups


def hash_of(item: pytest.Item) -> int:
    """Return a hash of the file and the first parameter, often a fixture's key."""
    file, _, test = item.nodeid.partition("::")
    return zlib.crc32(f"{file} {test.partition('[')[2].rstrip(']').partition('-')[0]}".encode())


def leave_out(config: pytest.Config, items: list[pytest.Item], saved: set[pytest.Item]) -> None:
    """Deselect all tests but these."""
    config.hook.pytest_deselected(items=[item for item in items if item not in saved])
    items[:] = [item for item in items if item in saved]


def most_different(items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, int]]:
    """Yield items of a test and their number of new values, highest first."""
    values = {
        item: {(name, id(value)) for name, value in item.callspec.params.items()}
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else set[tuple[str, int]]()
        for item in items
    }
    calls = set[tuple[str, int]]()
    while values:
        item = max(values, key=lambda item: len(values[item] - calls))
        new = values.pop(item) - calls
        calls |= new
        yield item, len(new)


def once_each(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return few parameter sets of a test that cover every value."""
    return [item for item, _ in itertools.takewhile(lambda pair: pair[1], most_different(items))]


def of_each(items: list[pytest.Item], count: int) -> set[pytest.Item]:
    """Return at most `count` sets of parameters of each test, in the order of `hash_of`."""
    return {
        item
        for group in groups_of(items).values()
        for item, _ in itertools.islice(most_different(sorted(group, key=hash_of)), count)
    }


def default_tests(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return one set of parameters of each test that is not marked `slow`."""
    return of_each([item for item in items if not item.get_closest_marker("slow")], 1)


def mark_products(items: list[pytest.Item]) -> None:
    """Mark sets of parameters of `each_value` tests as `long` if all their values occur elsewhere."""
    products = [item for item in items if item.get_closest_marker("each_value") and not item.get_closest_marker("long")]
    for group in groups_of(products).values():
        for item in set(group) - set(once_each(group)):
            item.add_marker(pytest.mark.long)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Leave out tests by the options, after `-m` and `-k`."""
    mark_products(items)
    yield
    if chooses_nothing(config):
        leave_out(config, items, default_tests(items))
    if config.option.rest:
        leave_out(config, items, set(items) - default_tests(items))
    if config.option.of_each:
        leave_out(config, items, of_each(items, config.option.of_each))
    if config.option.share:
        number, shares = map(int, config.option.share.split("/"))
        leave_out(config, items, {item for item in items if hash_of(item) % shares == number % shares})
