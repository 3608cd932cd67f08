"""Steps that exchange dimensions of a real model's state are refused, even at equal sizes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from patched_functions import plant_fault
from planned_engines import planned_engine
from tiny_variants import variant

from hybridlm.families import (
    LaneInfo,
    RecurrenceInputs,
    RecurrenceOutputs,
    put_rows,
    take_rows,
)
from ir_passes import Claim, IsolationError, ViolationKind, prove_isolation

Write = Callable[..., Any]
EIGHT = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 8}
SQUARE = {"linear_key_head_dim": 16, "linear_value_head_dim": 16}


def _put(pool: Any, slots: Any, lengths: Any, change: Write) -> Any:
    """The pool with changed rows of the lanes that have a token."""
    rows = take_rows(pool, slots)
    active = (lengths > 0).reshape((-1,) + (1,) * (rows.ndim - 1))
    return put_rows(pool, slots, jnp.where(active, change(rows), rows))


def _transposed(right: Write) -> Write:
    """Return a recurrence whose new state exchanges key and value in lanes with tokens."""

    def wrong(inputs: RecurrenceInputs, **options: Any) -> RecurrenceOutputs:
        out, new = right(inputs, **options)
        return RecurrenceOutputs(out, _put(new, inputs.slots, inputs.lengths, lambda rows: jnp.swapaxes(rows, 2, 3)))

    return wrong


def _swapped_heads(right: Write) -> Write:
    """Keys of another head in each entry: heads and entries of a head change places."""
    return lambda query, key, *rest: right(query, jnp.swapaxes(key, 2, 3), *rest)


def _swapped_caches(right: Write) -> Write:
    return lambda query, key, value, *rest: right(query, value, key, *rest)


def _swapped_taps(right: Write) -> Write:
    """Taps and channels of a convolution state are swapped."""

    def wrong(x: Any, weight: Any, state: Any, info: LaneInfo, *rest: Any, **options: Any) -> Any:
        y, new = right(x, weight, state, info, *rest, **options)
        return y, _put(new, info.slots, info.lengths, lambda rows: rows.swapaxes(1, 2).reshape(rows.shape))

    return wrong


CASES = {
    "gated delta": ("next_base", SQUARE, "models.ops.recurrences.delta_rule.delta_rule", _transposed),
    "kimi delta": ("kimi_base", {}, "models.ops.recurrences.delta_rule.delta_rule", _transposed),
    "mamba2": ("mamba2_base", {"state_size": 16}, "models.mixers.mamba2.ssd", _transposed),
    "heads of a cache": ("next_base", EIGHT, "models.mixers.attention.append_and_attend", _swapped_heads),
    "keys for values": ("next_base", {}, "models.mixers.attention.append_and_attend", _swapped_caches),
    "taps": ("next_base", {}, "models.mixers.recurrent.layer_conv", _swapped_taps),
}


def _proof(directory: Path, name: str, changes: dict[str, Any], tokens: int, kernels: str = "auto") -> Any:
    chosen = variant(name)
    suffix = "_text" if chosen.family.startswith("qwen3_5") else ""
    fields = dict(chosen.text) | changes | {"model_type": chosen.family + suffix, "dtype": "float32"}
    (directory / "config.json").write_text(json.dumps(fields))
    engine = planned_engine(directory / "config.json", lanes=2, context=256, chunk=4, kernels=kernels)
    shape = engine.shape("generate", 2, tokens)
    step, contract = engine.programs.step(shape)
    return prove_isolation(step, engine.example_arguments(shape), contract)


@pytest.mark.parametrize("tokens", [1, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("case", "kernels"), [*((case, "auto") for case in CASES), ("heads of a cache", "off"), ("keys for values", "off")]
)
def test_a_state_in_another_order_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str, kernels: str, tokens: int
) -> None:
    name, changes, function, wrong = CASES[case]
    plant_fault(monkeypatch, function, wrong)
    with pytest.raises(IsolationError) as refused:
        _proof(tmp_path, name, changes, tokens, kernels)
    assert {violation.kind for violation in refused.value.violations} == {ViolationKind.DIMENSIONS}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_in_its_own_order_it_is_proved(tmp_path: Path, case: str) -> None:
    name, changes, *_ = CASES[case]
    for tokens in (1, 4):
        assert Claim.DIMENSIONS in {claim.id for claim in _proof(tmp_path, name, changes, tokens).proved}
