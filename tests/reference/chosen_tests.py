"""Options and a mark by which a run has part of the tests: `--of-each`, `--share`, `each_value`."""

import zlib
from collections.abc import Iterator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--of-each", type=int, metavar="N", help="run at most N sets of parameters of each test")
    parser.addoption("--share", metavar="K/N", help="run one of N shares of the tests, that of number K modulo N")


def spread(count: int, wanted: int) -> set[int]:
    """Return `wanted` places of `count`, the first and the last among them where there are two."""
    if count <= wanted:
        return set(range(count))
    return {round(i * (count - 1) / max(1, wanted - 1)) for i in range(wanted)}


def groups_of(items: list[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """Return the sets of parameters of each test."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return groups


def share_of(item: pytest.Item, shares: int) -> int:
    """Return the share that a test belongs to: with those of its file that have the same first parameter."""
    file, _, test = item.nodeid.partition("::")
    return zlib.crc32(f"{file} {test.partition('[')[2].rstrip(']').partition('-')[0]}".encode()) % shares


def leave_out(config: pytest.Config, items: list[pytest.Item], kept: set[pytest.Item]) -> None:
    """Deselect all tests but these."""
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def once_each(items: list[pytest.Item]) -> list[pytest.Function]:
    """Return few of the sets of parameters of one test, among which each value of each parameter is."""
    sets = {
        item: {(name, id(value)) for name, value in item.callspec.params.items()}
        for item in items
        if isinstance(item, pytest.Function)
    }
    left, kept = set[tuple[str, int]]().union(*sets.values()), list[pytest.Function]()
    while left:
        kept.append(max(sets, key=lambda item: len(left & sets[item])))
        left -= sets[kept[-1]]
    return kept


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark what the default run leaves out of products, and leave out what the options do."""
    products = [item for item in items if item.get_closest_marker("each_value") and not item.get_closest_marker("long")]
    for group in groups_of(products).values():
        for item in set(group) - set(once_each(group)):
            item.add_marker(pytest.mark.long)
    yield  # the options -m and -k choose
    if config.option.of_each:
        leave_out(
            config,
            items,
            {group[i] for group in groups_of(items).values() for i in spread(len(group), config.option.of_each)},
        )
    if config.option.share:
        number, shares = map(int, config.option.share.split("/"))
        leave_out(config, items, {item for item in items if share_of(item, shares) == number % shares})
