"""The lines of device-tables.md follow the formulas, and compiled programs agree."""

import re
from collections import Counter
from math import prod

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
    rows_of,
    seconds,
)
from exchanged import Devices

from hybridlm.compiler.collectives import Collective

CHEAP = "LFM2-1.2B"
SENT = Collective("psum", ("model",), 8, "float32", 900_000, 1, "")


@pytest.mark.slow
def test_the_last_mesh_of_each_number_of_devices_is_compiled() -> None:
    rows = rows_of(CHEAP)
    lines = page({CHEAP: rows}).partition(f"## {CHEAP}\n")[2].splitlines()[3:]
    assert lines == [line(row) for row in rows]
    cells = [line.split("|")[1] for line in lines]
    last = {prod(map(int, re.findall(r"=(\d+)", cell))): cell for cell in cells}
    assert [cell for cell in cells if "(compiled)" in cell] == [last[number] for number in NUMBERS]


@pytest.mark.long
@pytest.mark.parametrize("name", [CHEAP, "LFM2-8B", "OLMo-Hybrid-7B", "Nemotron-3-Nano"])
def test_programs_of_published_models_exchange_the_computed_bytes(name: str) -> None:
    """The whole model, over as many devices as there are here."""
    on = [devices for devices in compiled_on(config_of(name)) if prod(devices) <= jax.device_count()]
    assert on
    for devices in on:
        compiled(name, devices)


def test_meshes_split_a_model_as_far_as_it_goes() -> None:
    """OLMo splits over two devices and is among the long cases above."""
    assert meshes(config_of("LFM2-8B"))[-4:] == [
        Devices(model=16), Devices(2, 1, 8), Devices(2, 8), Devices(2, 2, 4),
    ]  # fmt: skip


def test_exchanging_takes_the_wire_and_the_wait() -> None:
    """By hand: a ring of 8 has 14 hops, of 16 on two machines 30."""
    near = 6.6e-6 + 14 * 0.6e-6 + 2 * 7 / 8 * 900_000 / 450e9
    assert exchanging(Counter({SENT: 3}), Devices(model=8)) == pytest.approx(3 * near)
    collective = Collective("psum", ("model",), 16, "float32", 900_000, 1, "")
    expected = 6.6e-6 + 28 * 1.0e-6 + 2 * 2.7e-6 + 2 * 15 / 16 * 900_000 / 50e9
    assert exchanging(Counter({collective: 1}), Devices(model=16)) == pytest.approx(expected)
    gather = Collective("all_gather", ("model",), 2, "float32", 450_000, 1, "")
    # the two devices along model are eight apart
    expected = 6.6e-6 + 2.7e-6 + 450_000 / 50e9
    assert exchanging(Counter({gather: 1}), Devices(model=2, expert=8)) == pytest.approx(expected)


def test_a_step_takes_the_longer_of_memory_and_products() -> None:
    """The exchange is added; a model that does not fit has no time."""
    contents = Held(weights=40 * 10**9, read=39 * 10**9, products=2e9, head=10**8, fixed=10**6, cache=10**7)
    row = Row(Devices(model=8), contents, Counter({SENT: 2}), Counter({SENT: 2}))
    wire = 2 * (6.6e-6 + 14 * 0.6e-6 + 3.5e-6)
    memory = (39e9 + 64 * (2e6 + 1e7)) / 3.35e12
    assert seconds(row, GPUS[0], 1) == pytest.approx((memory + wire, wire))
    products = 2 * 8 * (2e9 * 2048 + 1e8) / 989e12
    assert seconds(row, GPUS[0], 2048) == pytest.approx((products + wire, wire))
    large = row._replace(contents=contents._replace(weights=80 * 10**9))
    assert seconds(large, GPUS[0], 1) is None and seconds(large, GPUS[1], 1) is not None
