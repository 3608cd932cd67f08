"""Steps whose products XLA fuses with the conversion of their weights."""

import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from text_checkpoint import write_text_checkpoint
from tiny_variants import OTHER_GOLDENS

import hybridlm
from hybridlm import _programs
from hybridlm._all_steps import all_shapes
from hybridlm._product_forms import ChosenForms
from hybridlm._product_times import FUSED
from hybridlm._programs import Shape
from models.linear import Product, counted_as

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {"lanes": 4, "context": 32, "dtype": "bfloat16", "chunk": 4, "compilation_cache": False}
PROMPTS = [[5, 9, 3], [7, 7], [4, 8, 2, 6, 1]]
# In the long run one of every family.
MODELS = ["dense_interval", *(pytest.param(name, marks=pytest.mark.long) for name in OTHER_GOLDENS)]


def all_fused(lm: hybridlm.LM) -> ChosenForms:
    """Every product of every step of a model has a converted weight."""
    rows = {counted_as(one.lanes * one.tokens) for one in all_shapes(lm.engine) if isinstance(one, Shape)}
    narrow = {(one.shape[0], one.shape[1]) for one in lm.engine.params if one.ndim == 2 and one.dtype == jnp.bfloat16}
    return ChosenForms(
        fused={
            Product(count, outputs, inputs, "bfloat16"): "converted weight x rows"
            if count < 5
            else "rows x converted weight"
            for count in rows
            for outputs, inputs in narrow
        }
    )


@pytest.mark.parametrize("name", MODELS)
def test_fused_steps_pass_their_audit_and_compute_the_same(
    name: str, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """None is compiled anew as usual, and a sequence alone has the tokens that it has beside others."""
    plain, fused = (hybridlm.load(root / "tests/golden" / name, **SETTINGS) for _ in range(2))
    fused.engine.set_forms(all_fused(fused))
    one, other = ([x.token_ids for x in lm.generate(PROMPTS, max_tokens=6, ignore_eos=True)] for lm in (plain, fused))
    assert one == other and "is compiled anew" not in caplog.text
    assert all(one.holds for one in fused.certificates.values())
    assert fused.engine.programs.options(Shape("generate", 4, 1)) == FUSED
    assert [fused.generate([prompt], max_tokens=6, ignore_eos=True)[0].token_ids for prompt in PROMPTS] == other
    for one, other in zip(plain.score(PROMPTS), fused.score(PROMPTS), strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=0.02)
    assert "fused as rows x converted weight" in str(fused._scorer.origin["products"])


def test_a_fused_step_that_fails_its_audit_is_compiled_as_usual(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A processor that sums by a product with ones is what XLA's library computes wrongly."""

    def summed(logits: jax.Array, last: jax.Array, position: jax.Array) -> jax.Array:
        return logits + (logits @ jnp.ones((len(logits), 2)))[0]

    lm = hybridlm.load(write_text_checkpoint(tmp_path), **SETTINGS)
    lm.engine.set_forms(all_fused(lm))
    with caplog.at_level(logging.WARNING, "hybridlm"):
        wanted = lm.generate([[5, 9, 3], [2, 4]], max_tokens=4, ignore_eos=True)
        assert not caplog.text
        got = lm.generate([[5, 9, 3], [2, 4]], max_tokens=4, ignore_eos=True, logits_processor=summed)
    assert [one.token_ids for one in got] == [one.token_ids for one in wanted]
    assert "is compiled anew" in caplog.text and "ones" not in caplog.text and "broadcast f32[" in caplog.text
    assert all(one.holds for one in lm.certificates.values())


@pytest.mark.parametrize(
    "how", [{"certify": "warn"}, {"certify": "off"}, pytest.param({"sanitize": True}, marks=pytest.mark.long)]
)
def test_no_step_is_fused_that_is_not_audited(how: dict[str, Any], tmp_path: Path) -> None:
    lm = hybridlm.load(write_text_checkpoint(tmp_path), **SETTINGS, **how)
    lm.engine.set_forms(all_fused(lm))
    assert lm.engine.programs.options(Shape("generate", 2, 1)) is None
    assert lm.generate([[5, 9, 3]], max_tokens=2, ignore_eos=True)[0].token_ids


def test_what_xla_is_told_reaches_every_step_that_is_fused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_programs, "FUSED", {"xla_no_such_option": "1"})
    lm = hybridlm.load(write_text_checkpoint(tmp_path), **SETTINGS)
    lm.engine.set_forms(ChosenForms(fused={Product(8, 24, 16, "bfloat16"): "rows x converted weight"}))
    # Two prompts of four tokens.
    with pytest.raises(Exception, match="xla_no_such_option"):
        lm.generate([[5, 9, 3], [2, 4]], max_tokens=1, ignore_eos=True)
