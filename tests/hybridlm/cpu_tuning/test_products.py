"""The variant of each large matrix product: measured once per machine, and stored."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from hybridlm.cpu_tuning import products, store
from hybridlm.cpu_tuning.products import chosen_variants, describe_variants, fastest, large_products
from hybridlm.cpu_tuning.store import TimeStore
from hybridlm.cpu_tuning.variants import PACKED, Product, Variant
from hybridlm.devices.machine import Machine

PRODUCT = Product(4, 24, 16, "bfloat16")
WEIGHTS = [jnp.ones((24, 16), jnp.bfloat16)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Fake measurements instead of the clock, and the products that were measured."""
    found: dict[str, Any] = {"rows x weight": 1.0, "weight x rows": 2.0, "measured": []} | dict.fromkeys(PACKED, 3.0)

    def seconds(product: Product, *_: Any) -> dict[Variant, float]:
        found["measured"].append(product)
        return {variant: found[variant] for variant in product.variants}

    monkeypatch.setattr(products, "seconds_of", seconds)
    monkeypatch.setattr(products, "compiled_variants", lambda product: {})
    return found


def times(directory: Path) -> TimeStore:
    return TimeStore(directory, Machine.here())


def test_large_narrow_matrices_are_measured_for_every_small_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "MIN_ELEMENTS", 1000)
    big, wide, odd = (jnp.zeros(shape, jnp.bfloat16) for shape in ((100, 300), (300, 100), (10, 100)))
    params = [
        big,
        odd,
        big,
        wide,
        big.astype("float32"),
        jnp.zeros((9, 100), "bfloat16"),
        jnp.zeros((3, 100, 300), "bfloat16"),
    ]
    found = large_products(params, [64, 1, 65, 1000, 8, 2])
    monkeypatch.setattr(products, "MIN_SHARE", 0.02)
    fewer = large_products(params, [1])
    assert list(found) == [
        Product(rows, *shape, "bfloat16") for shape in ((100, 300), (10, 100), (300, 100)) for rows in (1, 2, 8, 64)
    ]
    assert [len(found[Product(2, *shape, "bfloat16")]) for shape in ((100, 300), (10, 100))] == [2, 1]
    assert [product.outputs for product in fewer] == [100, 300]


def test_another_variant_has_to_be_faster_by_a_twentieth() -> None:
    few, many = PRODUCT, dataclasses.replace(PRODUCT, rows=64)
    assert (few.default, many.default) == ("weight x rows", "rows x weight")
    cases: list[tuple[float, float, Variant, Variant]] = [
        (1.0, 1.03, "weight x rows", "rows x weight"),
        (1.0, 1.1, "rows x weight", "rows x weight"),
        (1.1, 1.0, "weight x rows", "weight x rows"),
        (1.03, 1.0, "weight x rows", "rows x weight"),
    ]
    for rows_first, weight_first, of_few, of_many in cases:
        seconds: dict[Variant, float] = {"rows x weight": rows_first, "weight x rows": weight_first}
        assert (fastest(few, seconds), fastest(many, seconds)) == (of_few, of_many)
    # The default is missing where its numbers were wrong.
    assert fastest(few, {"rows x weight": 2.0}) == "rows x weight"


def test_what_was_measured_is_kept_and_announced(
    tmp_path: Path, clock: dict[str, Any], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    other, kept = dataclasses.replace(PRODUCT, rows=8), times(tmp_path / "new")
    assert chosen_variants({PRODUCT: WEIGHTS}, kept, progress=True) == {PRODUCT: "rows x weight"}
    assert "1/1" in capsys.readouterr().err
    (line,) = caplog.messages
    assert all(said in line for said in ("1 matrix product", str(tmp_path / "new"), "without tune=True (--tune)"))
    clock |= {"rows x weight": 2.0, "weight x rows": 1.0}
    found = chosen_variants({PRODUCT: WEIGHTS, other: WEIGHTS}, kept)
    assert found == {PRODUCT: "rows x weight", other: "weight x rows"}
    assert clock["measured"] == [PRODUCT, other] and len(caplog.messages) == 2
    assert chosen_variants({PRODUCT: WEIGHTS, other: WEIGHTS}, kept) == found and len(caplog.messages) == 2
    assert describe_variants(found) == "4x16x24 bfloat16 as rows x weight"
    assert describe_variants({}) == describe_variants({other: "weight x rows"}) == "default"


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Machine)])
def test_another_machine_measures_anew(field: str, tmp_path: Path) -> None:
    here = Machine.here()
    seconds: dict[Variant, float] = dict.fromkeys(PRODUCT.variants, 0.5)
    TimeStore(tmp_path, here).keep(PRODUCT, seconds)
    there = dataclasses.replace(here, **{field: 99 if field == "cores" else "other"})
    assert TimeStore(tmp_path, here).find(PRODUCT) == seconds
    assert TimeStore(tmp_path, there).find(PRODUCT) is None


def test_what_cannot_be_read_is_measured_anew(tmp_path: Path, clock: dict[str, Any]) -> None:
    chosen_variants({PRODUCT: WEIGHTS}, times(tmp_path))
    (file,) = tmp_path.iterdir()
    text = file.read_text()
    for wrong in (
        text[:40],
        "",
        "[" * 100_000,
        text.replace("rows x weight", "both"),
        text.replace('"rows x weight"', '"weight x rows"'),
        text.replace("1000.0", "0.0"),
        text.replace("1000.0", "-1.0"),
        text.replace('"rows": 4', '"rows": 8'),
        text.replace(f'"version": {store.VERSION}', '"version": 0'),
        text.replace('"dtype"', '"type"'),
    ):
        assert wrong != text
        file.write_text(wrong)
        count = len(clock["measured"])
        assert chosen_variants({PRODUCT: WEIGHTS}, times(tmp_path)) == {PRODUCT: "rows x weight"}
        assert len(clock["measured"]) == count + 1 and file.read_text() == text


def test_a_directory_that_cannot_be_written_is_named(
    tmp_path: Path, clock: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "hybridlm"):
        assert chosen_variants({PRODUCT: WEIGHTS}, times(tmp_path / "file")) == {PRODUCT: "rows x weight"}
    assert "was not kept" in caplog.text and "again" in caplog.text
