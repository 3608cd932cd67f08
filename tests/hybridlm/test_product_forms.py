"""The form of each large matrix product: measured once on a machine, kept, and what the steps are compiled with."""

import dataclasses
import gc
import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from text_checkpoint import write_text_checkpoint

import hybridlm
from hybridlm import _form_store, _load, _product_forms
from hybridlm._form_store import FORMS, FormStore
from hybridlm._machine import Machine
from hybridlm._product_forms import chosen_forms, faster, forms_of, in_words, large_products
from hybridlm._programs import Shape
from hybridlm._words import words_of
from models.linear import Form, Product

PRODUCT = Product(4, 24, 16, "bfloat16")
WEIGHTS = [jnp.ones((24, 16), jnp.bfloat16)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What measuring finds, in place of the clock, and which products were measured."""
    found: dict[str, Any] = {"rows x weight": 1.0, "weight x rows": 2.0, "words of weight": 3.0, "measured": []}

    def seconds(product: Product, *_: Any) -> dict[Form, float]:
        found["measured"].append(product)
        return {form: found[form] for form in forms_of(product)}

    monkeypatch.setattr(_product_forms, "_seconds", seconds)
    monkeypatch.setattr(_product_forms, "_compiled", lambda product: {})
    return found


def test_large_narrow_matrices_are_measured_for_every_small_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_product_forms, "LARGE", 1000)
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
    found = large_products(params, [64, 1, 65, 8, 2])
    monkeypatch.setattr(_product_forms, "SHARE", 0.02)
    fewer = large_products(params, [1])
    assert list(found) == [
        Product(rows, *shape, "bfloat16") for shape in ((100, 300), (10, 100), (300, 100)) for rows in (1, 2, 8, 64)
    ]
    assert [len(found[Product(2, *shape, "bfloat16")]) for shape in ((100, 300), (10, 100))] == [2, 1]
    assert [product.outputs for product in fewer] == [100, 300]


def test_another_form_has_to_be_faster_by_a_tenth() -> None:
    few, many = PRODUCT, dataclasses.replace(PRODUCT, rows=64)
    assert (few.usual_form, many.usual_form) == ("weight x rows", "rows x weight")
    for rows_first, weight_first, of_few, of_many in (
        (1.0, 1.05, "weight x rows", "rows x weight"),
        (1.0, 1.2, "rows x weight", "rows x weight"),
        (1.2, 1.0, "weight x rows", "weight x rows"),
        (1.05, 1.0, "weight x rows", "rows x weight"),
    ):
        seconds: dict[Form, float] = {"rows x weight": rows_first, "weight x rows": weight_first}
        assert (faster(few, seconds), faster(many, seconds)) == (of_few, of_many)


def test_words_are_a_form_of_few_rows_and_a_number_of_inputs_that_can_be_summed() -> None:
    for product, can in (
        (Product(1, 24, 512, "bfloat16"), True),
        (Product(4, 24, 2304, "bfloat16"), True),
        (Product(5, 24, 512, "bfloat16"), False),
        (Product(1, 24, 480, "bfloat16"), False),
        (Product(1, 24, 528, "bfloat16"), False),
        (Product(1, 24, 2336, "bfloat16"), False),  # 73 terms, a prime
        (Product(1, 24, 2368, "bfloat16"), True),
        (Product(4, 24, 3584, "bfloat16"), True),
        (Product(1, 24, 16, "bfloat16"), False),
        (Product(1, 24, 512, "float16"), False),
    ):
        assert forms_of(product) == (FORMS if can else FORMS[:2]), product


@pytest.mark.parametrize("rows", [1, 8])
def test_the_time_of_a_form_is_the_least_of_several_over_weights_that_no_cache_holds(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    product, weights = Product(rows, 24, 512, "bfloat16"), [jnp.ones((24, 512), jnp.bfloat16)] * 3
    programs = _product_forms._compiled(product)
    assert set(programs) == set(forms_of(product))
    called: list[tuple[Form, int]] = []

    def counted(form: Form) -> Any:
        def run(rows: jax.Array, one: jax.Array) -> jax.Array:
            called.append((form, one.unsafe_buffer_pointer()))
            return programs[form](rows, one)

        return run

    monkeypatch.setattr(_product_forms, "READ", 5 * weights[0].nbytes)
    seconds = _product_forms._seconds(product, weights, {form: counted(form) for form in programs})
    assert set(seconds) == set(programs) and all(0 < one < 10 for one in seconds.values())
    for form in programs:
        assert len([one for one in called if one[0] == form]) == 5 * _product_forms.ROUNDS
    monkeypatch.setattr(_product_forms, "words_of", lambda weight: None)
    assert set(_product_forms._seconds(product, weights, programs)) == set(FORMS[:2])


def test_words_are_the_bytes_of_a_parameter_in_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    param = jnp.arange(24.0, dtype=jnp.bfloat16).reshape(4, 6) + 0
    words = words_of(param)
    assert words is not None and words.unsafe_buffer_pointer() == param.unsafe_buffer_pointer()
    expected = np.asarray(param).view(np.uint32).copy()
    del param
    gc.collect()
    assert words.shape == (4, 3) and (np.asarray(words) == expected).all()
    assert expected[0, 0] == 0x3F80_0000  # 0.0 in the low half, 1.0 in the high one
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert words_of(jnp.zeros((4, 6), jnp.bfloat16)) is None


def test_steps_read_words_where_that_is_the_fastest(
    tmp_path: Path, clock: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proved and audited as the others, with the same tokens; no byte is held twice."""
    monkeypatch.setattr(_product_forms, "LARGE", 1)
    monkeypatch.setattr(_product_forms, "FEWEST_TERMS", 1)
    clock |= {"words of weight": 0.5}
    settings: dict[str, Any] = {"lanes": 4, "context": 32, "dtype": "bfloat16", "chunk": 4}
    directory = write_text_checkpoint(tmp_path)
    plain = hybridlm.load(directory, compilation_cache=False, **settings)
    monkeypatch.setattr(
        _load,
        "chosen_forms",
        lambda products, folder, progress: chosen_forms(products, tmp_path / "products", progress),
    )
    formed = hybridlm.load(directory, **settings)
    engine, count = formed._engine, len(formed.params)
    assert engine.programs.words and len(engine.params) == count + len(engine.programs.words)
    for place, words in zip(engine.programs.words, engine.params[count:], strict=True):
        assert words.unsafe_buffer_pointer() == engine.params[place].unsafe_buffer_pointer()
    assert engine.parameters_on_a_device == plain._engine.parameters_on_a_device
    for shape, expected in ((Shape("generate", 2, 1), True), (Shape("score", 4, 4, 0), False)):
        step, _ = engine.programs.step(shape)
        text = str(jax.make_jaxpr(step)(*engine.example_arguments(shape)))
        assert ("new_dtype=float32" in text and "bitcast_convert_type" in text) == expected, shape
    prompts = [[5, 9, 3], [7, 7], [4, 8, 2, 6, 1]]
    one, other = ([x.token_ids for x in lm.generate(prompts, max_tokens=6, ignore_eos=True)] for lm in (plain, formed))
    assert one == other and all(one.holds for one in formed.certificates.values())
    alone = [formed.generate([prompt], max_tokens=6, ignore_eos=True)[0].token_ids for prompt in prompts]
    assert alone == other
    np.testing.assert_allclose(
        plain.score([[5, 9, 3, 4]])[0].logprobs, formed.score([[5, 9, 3, 4]])[0].logprobs, atol=0.02
    )


def test_what_was_measured_is_kept(tmp_path: Path, clock: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    other = dataclasses.replace(PRODUCT, rows=8)
    assert chosen_forms({PRODUCT: WEIGHTS}, tmp_path / "new", progress=True) == {PRODUCT: "rows x weight"}
    assert "1/1" in capsys.readouterr().err
    clock |= {"rows x weight": 2.0, "weight x rows": 1.0}
    forms = chosen_forms({PRODUCT: WEIGHTS, other: WEIGHTS}, tmp_path / "new")
    assert forms == {PRODUCT: "rows x weight", other: "weight x rows"}
    assert clock["measured"] == [PRODUCT, other]
    assert in_words(forms) == "4x16x24 bfloat16" and in_words({}) == in_words({other: "weight x rows"}) == "usual"


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Machine)])
def test_another_machine_measures_anew(field: str, tmp_path: Path) -> None:
    here = Machine.here()
    FormStore(tmp_path, here).keep(PRODUCT, "rows x weight", (1.0, 2.0))
    there = dataclasses.replace(here, **{field: 99 if field == "cores" else "other"})
    assert FormStore(tmp_path, here).find(PRODUCT) == "rows x weight"
    assert FormStore(tmp_path, there).find(PRODUCT) is None


def test_what_cannot_be_read_is_measured_anew(tmp_path: Path, clock: dict[str, Any]) -> None:
    chosen_forms({PRODUCT: WEIGHTS}, tmp_path)
    (file,) = tmp_path.iterdir()
    text = file.read_text()
    for wrong in (
        text[:40],
        "",
        "[" * 100_000,
        text.replace("rows x weight", "both"),
        text.replace('"rows": 4', '"rows": 8'),
        text.replace(f'"version": {_form_store.VERSION}', '"version": 0'),
        text.replace('"dtype"', '"type"'),
    ):
        file.write_text(wrong)
        count = len(clock["measured"])
        assert chosen_forms({PRODUCT: WEIGHTS}, tmp_path) == {PRODUCT: "rows x weight"}
        assert len(clock["measured"]) == count + 1 and file.read_text() == text


def test_a_directory_that_cannot_be_written_is_named(
    tmp_path: Path, clock: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "hybridlm"):
        assert chosen_forms({PRODUCT: WEIGHTS}, tmp_path / "file") == {PRODUCT: "rows x weight"}
    assert str(tmp_path / "file") in caplog.text and "again" in caplog.text


def lefts(lm: hybridlm.LM, shape: Shape) -> list[tuple[int, ...]]:
    """Shapes of what stands on the left of the products with narrow weights in a step."""
    step, _ = lm._engine.programs.step(shape)
    jaxpr = jax.make_jaxpr(step)(*lm._engine.example_arguments(shape))
    products = [one for one in jaxpr.eqns if one.primitive.name == "dot_general"]
    return [one.invars[0].aval.shape for one in products if one.invars[0].aval.dtype == jnp.bfloat16]


def test_steps_are_compiled_with_the_chosen_forms(
    tmp_path: Path, clock: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens stay; what decides the bits of scores says so."""
    monkeypatch.setattr(_product_forms, "LARGE", 1)
    settings: dict[str, Any] = {"lanes": 2, "context": 32, "dtype": "bfloat16", "chunk": 4}
    directory = write_text_checkpoint(tmp_path)
    plain = hybridlm.load(directory, compilation_cache=False, **settings)
    kept: list[Path] = []

    def beside_the_programs(products: Any, folder: Path, progress: bool | None) -> dict[Product, Form]:
        kept.append(folder)
        return chosen_forms(products, tmp_path / "products", progress)

    monkeypatch.setattr(_load, "chosen_forms", beside_the_programs)
    formed = hybridlm.load(directory, **settings)
    assert kept == [Path(jax.config.values["jax_compilation_cache_dir"]) / "products"]
    assert {product.rows for product in formed._engine.programs.forms} == {1, 2, 4, 8}
    assert not plain._engine.programs.forms
    shape = Shape("generate", 2, 1)
    vocabulary = formed.config.vocab_size
    assert (vocabulary, 32) in lefts(plain, shape)
    assert all(left[0] == 2 for left in lefts(formed, shape)) and lefts(formed, shape) != lefts(plain, shape)
    one, other = (lm.generate([[5, 9, 3]], max_tokens=4, ignore_eos=True) for lm in (plain, formed))
    assert one[0].token_ids == other[0].token_ids
    assert all(one.holds for one in formed.certificates.values())
    assert plain._scorer.origin["products"] == "usual" and "bfloat16" in str(formed._scorer.origin["products"])


def test_devices_of_a_mesh_have_the_usual_forms(
    tmp_path: Path, clock: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that measured by themselves would run different programs."""
    monkeypatch.setattr(_product_forms, "LARGE", 1)
    lm = hybridlm.load(write_text_checkpoint(tmp_path), dtype="bfloat16", lanes=2, mesh=hybridlm.mesh(data=2))
    assert not lm._engine.programs.forms and not clock["measured"]
