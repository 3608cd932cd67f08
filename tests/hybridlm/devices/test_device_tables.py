"""docs/tables/device-tables.md has a line for every mesh of every published model, with the numbers of the formulas."""

import re
from collections import Counter
from math import prod
from pathlib import Path

import jax
import pytest
from device_table import (
    GPUS,
    NUMBERS,
    Held,
    Row,
    compiled,
    compiled_on,
    config_of,
    exchanging,
    line,
    meshes,
    page,
    row_of,
    seconds,
)
from exchanged import Devices
from published import PUBLISHED

from ir_passes.jaxpr.collectives import Collective

CHEAP = "LFM2-1.2B"
SENT = Collective("psum", ("model",), 8, "float32", 900_000, 1, "")


@pytest.fixture(scope="module")
def sections(root: Path) -> dict[str, str]:
    """The part of each model by its name; the introduction by none."""
    parts = (root / "docs" / "tables" / "device-tables.md").read_text().split("\n## ")
    return {part.partition("\n")[0] if i else "": part for i, part in enumerate(parts)}


def test_every_model_is_there(sections: dict[str, str]) -> None:
    assert list(sections) == ["", *PUBLISHED], "run `python scripts/write_device_tables.py`"
    assert page({}).startswith(sections[""].rstrip())
    for name in PUBLISHED:
        cells = [one.split("|")[1] for one in sections[name].splitlines() if one.startswith("| ")][1:]
        last = {prod(map(int, re.findall(r"=(\d+)", cell))): cell for cell in cells}
        assert [cell for cell in cells if "(compiled)" in cell] == [last[number] for number in NUMBERS]


def test_lines_are_what_the_formulas_say(sections: dict[str, str]) -> None:
    config = config_of(CHEAP)
    assert sections[CHEAP].count("\n| ") == 1 + len(meshes(config))
    for devices in (Devices(), Devices(model=8), Devices(data=2, model=8)):
        row = row_of(CHEAP, devices)._replace(compiled=devices in compiled_on(config))
        assert line(row) in sections[CHEAP].splitlines()


@pytest.mark.long
@pytest.mark.parametrize("name", [CHEAP, "LFM2-8B", "OLMo-Hybrid-7B", "Nemotron-3-Nano"])
def test_programs_of_published_models_exchange_what_the_formulas_say(sections: dict[str, str], name: str) -> None:
    """Of the whole model, over as many devices as there are here."""
    on = [devices for devices in compiled_on(config_of(name)) if prod(devices) <= jax.device_count()]
    assert on
    for devices in on:
        assert line(compiled(name, devices)) in sections[name].splitlines()


def test_meshes_split_a_model_as_far_as_it_goes() -> None:
    """OLMo, which goes on two devices, is among the long ones above."""
    assert meshes(config_of("LFM2-8B"))[-4:] == [
        Devices(model=16), Devices(2, 1, 8), Devices(2, 8), Devices(2, 2, 4),
    ]  # fmt: skip


def test_exchanging_takes_the_wire_and_the_wait() -> None:
    """By hand: 14 hops of a ring of eight; of sixteen on two machines 30, of which two lead from one to the other."""
    near = 6.6e-6 + 14 * 0.6e-6 + 2 * 7 / 8 * 900_000 / 450e9
    assert exchanging(Counter({SENT: 3}), Devices(model=8)) == pytest.approx(3 * near)
    far = Collective("psum", ("model",), 16, "float32", 900_000, 1, "")
    expected = 6.6e-6 + 28 * 1.0e-6 + 2 * 2.7e-6 + 2 * 15 / 16 * 900_000 / 50e9
    assert exchanging(Counter({far: 1}), Devices(model=16)) == pytest.approx(expected)
    gather = Collective("all_gather", ("model",), 2, "float32", 450_000, 1, "")
    # the two devices along model are eight apart
    expected = 6.6e-6 + 2.7e-6 + 450_000 / 50e9
    assert exchanging(Counter({gather: 1}), Devices(model=2, expert=8)) == pytest.approx(expected)


def test_a_step_takes_the_longer_of_memory_and_products() -> None:
    """And the exchange behind it; what does not fit has no time."""
    held = Held(weights=40 * 10**9, read=39 * 10**9, products=2e9, head=10**8, fixed=10**6, cache=10**7)
    row = Row(Devices(model=8), held, Counter({SENT: 2}), Counter({SENT: 2}))
    wire = 2 * (6.6e-6 + 14 * 0.6e-6 + 3.5e-6)
    memory = (39e9 + 64 * (2e6 + 1e7)) / 3.35e12
    assert seconds(row, GPUS[0], 1) == pytest.approx((memory + wire, wire))
    products = 2 * 8 * (2e9 * 2048 + 1e8) / 989e12
    assert seconds(row, GPUS[0], 2048) == pytest.approx((products + wire, wire))
    large = row._replace(held=held._replace(weights=80 * 10**9))
    assert seconds(large, GPUS[0], 1) is None and seconds(large, GPUS[1], 1) is not None
