"""Steps ignore the caller's JAX settings; a setting that blocks them is named."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from text_checkpoint import SETTINGS

import hybridlm
from hybridlm.compiler.stages import SettingError
from hybridlm.programs.jax_settings import fixed_settings


def answers(lm: hybridlm.LM) -> tuple[list[list[int]], list[bytes]]:
    """Sampled tokens of one sequence, and bits of the log-probabilities of a text."""
    tokens = [list(completion.token_ids) for completion in lm.generate(["Ada"], max_tokens=3, temperature=1.0, seed=3)]
    return tokens, [np.asarray(score.logprobs).tobytes() for score in lm.score(["Ada has"])]


@pytest.fixture(scope="module")
def expected(text_lm: hybridlm.LM) -> Any:
    return answers(text_lm)


@contextlib.contextmanager
def all_at_once() -> Iterator[None]:
    """Settings that each broke steps that were compiled under them, or changed their numbers."""
    with contextlib.ExitStack() as stack:
        for context in (
            jax.enable_x64(True),
            jax.numpy_dtype_promotion("strict"),
            jax.numpy_rank_promotion("raise"),
            jax.default_prng_impl("rbg"),
            jax.threefry_partitionable(False),
            jax.default_device(jax.devices()[1]),
            jax.set_mesh(jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))),
        ):
            stack.enter_context(context)
        yield


@pytest.mark.slow
def test_steps_compiled_under_other_settings_have_the_same_bits_inside_and_outside(text_lm: hybridlm.LM, expected: Any):
    lm = hybridlm.load(text_lm.path, **SETTINGS)
    with all_at_once():
        assert answers(lm) == expected
        certificates = lm.certificates
    assert answers(lm) == expected and lm.certificates.keys() == certificates.keys()
    assert all("jax_enable_x64=False" in certificate.versions.flags for certificate in certificates.values())


@pytest.mark.slow
def test_plain_steps_have_the_same_bits_with_64_bit_types(text_lm: hybridlm.LM, expected: Any) -> None:
    """Without kernels, attention of one sequence had sums of 64 bits."""
    lm = hybridlm.load(text_lm.path, kernels="off", **SETTINGS)
    with jax.enable_x64(True):
        inner = answers(lm)
    assert answers(lm) == inner and inner[0] == expected[0]


def test_a_setting_of_the_user_makes_separate_programs(text_lm: hybridlm.LM) -> None:
    lm = hybridlm.load(text_lm.path, **SETTINGS)
    shape = lm.engine.moves.shapes(1, lm.engine.pages(1))[0]
    compiled = lambda: lm.engine.programs.compiled(shape, lm.engine.example_arguments)
    first = compiled()
    with jax.default_matmul_precision("highest"):
        second = compiled()
    assert first is not second and compiled() is first
    assert lm.engine.programs.shapes == [shape] and len(lm.certificates) == 2
    flags = [set(program.certificate.versions.flags) for program in (first, second)]
    assert flags[0] != flags[1]


REFUSED: dict[str, Callable[[bool], Any]] = {
    "jax_debug_nans": jax.debug_nans,
    "jax_debug_infs": jax.debug_infs,
    "jax_disable_jit": jax.disable_jit,
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_under_which_no_step_is_certified_is_named(name: str, text_lm: hybridlm.LM, expected: Any) -> None:
    with REFUSED[name](True):
        for call in (lambda: list(text_lm.generate(["Ada"], max_tokens=1)), lambda: list(text_lm.score(["Ada has"]))):
            with pytest.raises(SettingError, match=name) as refused:
                call()
            assert str(refused.value).startswith(f"{name} is on") and len(str(refused.value).splitlines()) == 1
    assert answers(text_lm) == expected


@pytest.mark.parametrize("name", REFUSED)
def test_accepted_settings_accept_no_others(name: str, text_lm: hybridlm.LM, expected: Any) -> None:
    """Settings that need no change are compared as a whole in later steps."""
    with fixed_settings():
        assert answers(text_lm) == expected and text_lm.engine.settings.accepted
        names = text_lm.certificates.keys()
        with REFUSED[name](True), pytest.raises(SettingError, match=name):
            text_lm.generate(["Ada"], max_tokens=1)
        with jax.enable_x64(True):
            assert answers(text_lm) == expected
    assert text_lm.certificates.keys() == names, "no program for 64-bit types"


def test_without_certificates_values_may_be_checked(text_lm: hybridlm.LM) -> None:
    lm = hybridlm.load(text_lm.path, **SETTINGS, certify="off")
    with jax.debug_nans(True):
        lm.engine.programs.compiled(lm.engine.moves.shapes(1, lm.engine.pages(1))[0], lm.engine.example_arguments)


@pytest.mark.slow
def test_weights_and_states_are_on_the_device_of_the_time_of_loading(text_lm: hybridlm.LM) -> None:
    first, second = jax.devices()[:2]
    with jax.default_device(second):
        lm = hybridlm.load(text_lm.path, **SETTINGS)
    assert jax.tree.leaves(lm.engine.new_rows(1))[0].devices() == {second}
    with jax.default_device(second):
        text_lm.update({name: np.asarray(array) for name, array in text_lm.params.items()})
    assert {device for array in text_lm.params.values() for device in array.devices()} == {first}


def test_forward_has_the_same_bits_with_64_bit_types(text_lm: hybridlm.LM) -> None:
    tokens = [5, 6, 7, 8, 9, 10, 11]
    first = text_lm.forward(tokens)
    with jax.enable_x64(True):
        second = text_lm.forward(tokens)
    for array, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert array.dtype == other.dtype and np.asarray(array).tobytes() == np.asarray(other).tobytes()
