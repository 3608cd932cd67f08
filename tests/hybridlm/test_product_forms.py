"""The form of each large matrix product: measured once on a machine, kept, and what the steps are compiled with."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from text_checkpoint import write_text_checkpoint

import hybridlm
from hybridlm import _form_store, _load, _product_forms, _product_times
from hybridlm._form_store import FormStore
from hybridlm._machine import Machine
from hybridlm._product_forms import ChosenForms, chosen_forms, fastest, large_products
from hybridlm._product_times import CONVERTED, forms_of
from hybridlm._programs import Shape
from models.linear import MANY_ROWS, PAIRS, WORDS, Form, Product

pytestmark = pytest.mark.slow

FEW_AND_MANY = (1, 2, 8, 64, MANY_ROWS)
PRODUCT = Product(4, 24, 16, "bfloat16")
WEIGHTS = [jnp.ones((24, 16), jnp.bfloat16)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What measuring finds, in place of the clock, and which products were measured."""
    found: dict[str, Any] = {"rows x weight": 1.0, "weight x rows": 2.0, "measured": []}
    found |= dict.fromkeys((*WORDS, PAIRS), 3.0) | dict.fromkeys(CONVERTED, 9.0)

    def seconds(product: Product, *_: Any) -> dict[Form, float]:
        found["measured"].append(product)
        return {form: found[form] for form in forms_of(product)}

    monkeypatch.setattr(_product_forms, "seconds_of", seconds)
    monkeypatch.setattr(_product_forms, "compiled_forms", lambda product: {})
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
    found = large_products(params, [64, 1, 65, 1000, 8, 2])
    monkeypatch.setattr(_product_forms, "SHARE", 0.02)
    fewer = large_products(params, [1])
    assert list(found) == [
        Product(rows, *shape, "bfloat16") for shape in ((100, 300), (10, 100), (300, 100)) for rows in FEW_AND_MANY
    ]
    assert [len(found[Product(2, *shape, "bfloat16")]) for shape in ((100, 300), (10, 100))] == [2, 1]
    assert [product.outputs for product in fewer] == [100, 300]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert {product.rows for product in large_products(params, [1, 65])} == {1}


def test_another_form_has_to_be_faster_by_a_twentieth() -> None:
    few, many = PRODUCT, dataclasses.replace(PRODUCT, rows=64)
    assert (few.usual_form, many.usual_form) == ("weight x rows", "rows x weight")
    cases: list[tuple[float, float, Form, Form]] = [
        (1.0, 1.03, "weight x rows", "rows x weight"),
        (1.0, 1.1, "rows x weight", "rows x weight"),
        (1.1, 1.0, "weight x rows", "weight x rows"),
        (1.03, 1.0, "weight x rows", "rows x weight"),
    ]
    for rows_first, weight_first, of_few, of_many in cases:
        seconds: dict[Form, float] = {"rows x weight": rows_first, "weight x rows": weight_first}
        seconds |= dict.fromkeys(CONVERTED, 2.0)
        found = fastest({few: seconds, many: seconds}, {few: 1, many: 1})
        assert found == ChosenForms(plain={few: of_few, many: of_many})


def test_steps_are_fused_where_all_their_products_together_are_faster_so() -> None:
    """A step is compiled in one way: the many weights of one shape decide for the few of another."""
    often, once = PRODUCT, Product(4, 9, 512, "bfloat16")
    slow: dict[Form, float] = {"rows x weight": 3.0, "weight x rows": 3.0, "words of weight": 1.0}
    fast: dict[Form, float] = {"rows x weight": 1.0, "weight x rows": 2.0}
    slow |= {"rows x converted weight": 4.0, "converted weight x rows": 5.0}
    fast |= {"rows x converted weight": 0.9, "converted weight x rows": 0.8}
    times = {often: fast, once: slow}
    plain: dict[Product, Form] = {often: "rows x weight", once: "words of weight"}
    found = fastest(times, {often: 10, once: 1})
    assert found == ChosenForms(plain, {often: "converted weight x rows", once: "words of weight"})
    assert [found.fuse(rows) for rows in (4, 5, 128)] == [True, False, False]
    assert found.read_as_words == ChosenForms(fused=found.fused).read_as_words == {(9, 512, "bfloat16")}
    assert "4x16x24 bfloat16 fused as converted weight x rows" in str(found)
    times[often] |= {"rows x converted weight": 1.0, "converted weight x rows": 1.2}
    assert fastest(times, {often: 10, once: 1}) == ChosenForms(plain)
    # In a step that is fused there is no kernel for pairs of narrow numbers; in another they are a form like any.
    in_pairs: dict[Form, float] = dict(times[often])
    in_pairs[PAIRS] = 0.5
    assert fastest({often: in_pairs}, {often: 1}) == ChosenForms({often: PAIRS})
    in_pairs[CONVERTED[0]] = 0.4
    assert fastest({often: in_pairs}, {often: 1}).fused == {often: CONVERTED[0]}
    many = dataclasses.replace(often, rows=MANY_ROWS)
    some = fastest({many: {"rows x weight": 1.0, "rows x converted weight": 0.8}}, {many: 3})
    assert [some.fuse(rows) for rows in (65, 4096, 64)] == [True, True, False]


def test_no_step_is_fused_that_has_a_product_which_cannot_be() -> None:
    """One that XLA's library computes wrongly, say, has no time in these forms."""
    other = Product(4, 9, 512, "bfloat16")
    times: dict[Product, dict[Form, float]] = {
        PRODUCT: {"rows x weight": 9.0, "weight x rows": 9.0, "converted weight x rows": 1.0},
        other: {"rows x weight": 1.0, "weight x rows": 1.0},
    }
    assert fastest(times, {PRODUCT: 10, other: 1}) == ChosenForms(dict.fromkeys(times, "weight x rows"))
    del times[other]
    # The other form of a converted weight is the usual one there: it is missing, not the slower one.
    times[PRODUCT]["rows x converted weight"] = times[PRODUCT].pop("converted weight x rows")
    assert fastest(times, {PRODUCT: 1}).fused == {PRODUCT: "rows x converted weight"}


def test_steps_read_words_where_that_is_the_fastest(
    tmp_path: Path, clock: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proved and audited as the others, with the same tokens; no byte is held twice."""
    monkeypatch.setattr(_product_forms, "LARGE", 1)
    monkeypatch.setattr(_product_times, "FEWEST_TERMS", 1)
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
    engine, count = formed.engine, len(formed.params)
    places = engine.programs.derived.words
    assert places and len(engine.params) == count + len(places)
    for place, words in zip(places, engine.params[count:], strict=True):
        assert words.unsafe_buffer_pointer() == engine.params[place].unsafe_buffer_pointer()
    assert engine.parameters_on_a_device == plain.engine.parameters_on_a_device
    for shape, expected in ((Shape("generate", 2, 1), True), (Shape("score", 4, 4, 0), False)):
        step, _ = engine.programs.step(shape)
        text = str(jax.make_jaxpr(step)(*engine.example_arguments(shape)))
        assert ("4294901760" in text) == expected, shape  # the mask of the upper half of a word
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
    assert chosen_forms({PRODUCT: WEIGHTS}, tmp_path / "new", progress=True).plain == {PRODUCT: "rows x weight"}
    assert "1/1" in capsys.readouterr().err
    clock |= {"rows x weight": 2.0, "weight x rows": 1.0}
    found = chosen_forms({PRODUCT: WEIGHTS, other: WEIGHTS}, tmp_path / "new")
    assert found.plain == {PRODUCT: "rows x weight", other: "weight x rows"}
    assert clock["measured"] == [PRODUCT, other]
    assert str(found) == "4x16x24 bfloat16 as rows x weight"
    assert str(ChosenForms()) == str(ChosenForms({other: "weight x rows"})) == "usual"


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Machine)])
def test_another_machine_measures_anew(field: str, tmp_path: Path) -> None:
    here = Machine.here()
    times: dict[Form, float] = {form: 0.5 for form in forms_of(PRODUCT)}
    FormStore(tmp_path, here).keep(PRODUCT, times)
    there = dataclasses.replace(here, **{field: 99 if field == "cores" else "other"})
    assert FormStore(tmp_path, here).find(PRODUCT) == times
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
        text.replace('"rows x weight"', '"weight x rows"'),
        text.replace("1000.0", "0.0"),
        text.replace("1000.0", "-1.0"),
        text.replace('"rows": 4', '"rows": 8'),
        text.replace(f'"version": {_form_store.VERSION}', '"version": 0'),
        text.replace('"dtype"', '"type"'),
    ):
        file.write_text(wrong)
        count = len(clock["measured"])
        assert chosen_forms({PRODUCT: WEIGHTS}, tmp_path).plain == {PRODUCT: "rows x weight"}
        assert len(clock["measured"]) == count + 1 and file.read_text() == text


def test_a_directory_that_cannot_be_written_is_named(
    tmp_path: Path, clock: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "hybridlm"):
        assert chosen_forms({PRODUCT: WEIGHTS}, tmp_path / "file").plain == {PRODUCT: "rows x weight"}
    assert str(tmp_path / "file") in caplog.text and "again" in caplog.text


def lefts(lm: hybridlm.LM, shape: Shape) -> list[tuple[int, ...]]:
    """Shapes of what stands on the left of the products with narrow weights in a step."""
    step, _ = lm.engine.programs.step(shape)
    jaxpr = jax.make_jaxpr(step)(*lm.engine.example_arguments(shape))
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

    def beside_the_programs(products: Any, folder: Path, progress: bool | None) -> ChosenForms:
        kept.append(folder)
        return chosen_forms(products, tmp_path / "products", progress)

    monkeypatch.setattr(_load, "chosen_forms", beside_the_programs)
    formed = hybridlm.load(directory, **settings)
    assert kept == [Path(jax.config.values["jax_compilation_cache_dir"]) / "products"]
    assert {product.rows for product in formed.engine.programs.forms.plain} == {1, 2, 4, 8}
    assert plain.engine.programs.forms == ChosenForms()
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
    assert lm.engine.programs.forms == ChosenForms() and not clock["measured"]
