"""Formulas of docs/devices.md give the bytes of XLA's collectives and of certified schedules.

The case that always runs is in test_mesh_runs.py, where the steps are compiled anyway.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from exchanged import Devices, by_hand, counted, in_bytes, ways_of_experts, without_sources
from planned_engines import planned_engine
from published import QWEN3_5_35B
from random_checkpoint import FAMILIES
from tiny_variants import variant

import hybridlm
from models import family_of

LANES, TOKENS = 8, 5
Step = tuple[Any, ...]
"""Kind, lanes and tokens of a step, and its reported log-probabilities."""
SIZES: dict[str, Any] = {"lanes": LANES, "context": 200, "dtype": "float32", "chunk": TOKENS}
CASES: list[tuple[str, dict[str, Any], Devices]] = [
    *((name, fields, Devices(2, 2, 2)) for name, fields in FAMILIES.items()),
    ("nemotron_latent", FAMILIES["nemotron_latent"], Devices(1, 4, 1)),
    ("bamba_one_group", {}, Devices(1, 4, 1)),
    ("sparse_base", {}, Devices(1, 1, 8)),
    ("sparse_base", {}, Devices(8, 1, 1)),
]


def fields_of(name: str, **fields: Any) -> dict[str, Any]:
    return {**variant(name).config, "vocab_size": 64, **fields}


def check(fields: dict[str, Any], devices: Devices, path: Path, steps: tuple[Step, ...], **sizes: Any) -> None:
    """Asserts that formula, compiled program and certificate agree, in bytes and in numbers."""
    path.write_text(json.dumps(fields))
    engine = planned_engine(path, mesh=hybridlm.mesh(*devices), **sizes)
    config = family_of(fields).read_config(fields)
    for name, lanes, tokens, *top in steps:
        shape = engine.shape(name, lanes, tokens, top=top[0] if top else None)
        program = engine.program(shape)
        expected = by_hand(config, devices, shape.lanes, shape.tokens, shape.step, shape.top or 0)
        assert counted(program.compiled.as_text()) == in_bytes(expected)
        assert without_sources(program.certificate.collectives) == expected


@pytest.mark.long
@pytest.mark.parametrize(("name", "fields", "devices"), CASES, ids=str)
def test_formula_of_every_family(tmp_path: Path, name: str, fields: dict[str, Any], devices: Devices) -> None:
    """One token of each lane, and five."""
    steps = ("generate", LANES, 1), ("generate", LANES, TOKENS)
    check(fields_of(name, **fields), devices, tmp_path / "config.json", steps, **SIZES)


@pytest.mark.slow
def test_formula_of_scoring(tmp_path: Path) -> None:
    """Five numbers per token and the likeliest tokens replace logits; the step is planned."""
    fields, devices = fields_of("sparse_base"), Devices(2, 2, 2)
    (tmp_path / "config.json").write_text(json.dumps(fields))
    engine = planned_engine(tmp_path / "config.json", mesh=hybridlm.mesh(*devices), **SIZES)
    planned = engine.planned(engine.shape("score", LANES, TOKENS, top=3))
    expected = by_hand(family_of(fields).read_config(fields), devices, LANES, TOKENS, "score", top=3)
    assert without_sources(planned.collectives) == expected


@pytest.mark.long
@pytest.mark.parametrize(
    "step", [("verify", LANES, TOKENS), ("score", LANES, TOKENS, 0), ("score", LANES, TOKENS, 3)], ids=str
)
def test_formula_of_scoring_and_of_drafts(tmp_path: Path, step: Step) -> None:
    check(fields_of("sparse_base"), Devices(2, 2, 2), tmp_path / "config.json", (step,), **SIZES)


def test_experts_are_summed_because_that_has_fewer_bytes() -> None:
    """Two thirds at all sizes; less where devices do not divide the tokens."""
    for devices in (2, 3, 4, 8, 16, 64):
        for tokens in (1, 2, 3, 7, 8, 64, 100, 2048):
            for numbers in (64, 2048, 7168):
                sent = ways_of_experts(devices, tokens, numbers)
                assert min(sent, key=sent.__getitem__) == "sum"
                if tokens % devices == 0:
                    assert 3 * sent["sum"] == 2 * sent["sent"]


@pytest.mark.long
def test_formula_at_the_width_of_a_published_model(tmp_path: Path) -> None:
    """Four layers of Qwen3.5-35B-A3B, one of them attention, with all experts and the vocabulary."""
    text = QWEN3_5_35B["text_config"]
    layers = {"num_hidden_layers": 4, "layer_types": text["layer_types"][:4]}
    steps = ("generate", 64, 1), ("generate", 8, 256)
    check(QWEN3_5_35B | {"text_config": text | layers}, Devices(1, 4, 2), tmp_path / "config.json", steps)


@pytest.mark.long
def test_a_row_that_moves_is_summed_over_data(tmp_path: Path) -> None:
    """Each array of a row is one sum, at most a device's part."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields_of("olmo_base")))
    engine = planned_engine(path, mesh=hybridlm.mesh(2, 2), **SIZES)
    state, _, span, _ = engine.moves.shapes(8, engine.pages(8))
    sent = [counted(engine.program(shape).compiled.as_text()) for shape in (state, span)]
    devices = engine.placement.devices.model
    token = 4  # the last token of a row, int32, is whole on every device
    state_bytes = (engine.moves.state_bytes - token) // devices + token
    assert sent == [{("all-reduce", 2): count} for count in (state_bytes, engine.moves.span_bytes // devices)]


def test_collectives_are_counted_in_text() -> None:
    text = """
  %a.1 = f32[4,5,64]{2,1,0} all-reduce(%b), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%r
  %a.2 = (f32[20,1]{1,0}, bf16[20]{0}) all-reduce(%c, %d), replica_groups=[4,2]<=[8], to_apply=%r
  %g.3 = f32[4,64]{0,1} all-gather(%e), replica_groups={{0,1,2,3}}, dimensions={1}
  %t.4 = f32[20] get-tuple-element(%a.2), index=0, metadata={op_name="all-reduce(x), replica_groups={{0,1}}"}
"""
    assert counted(text) == {("all-reduce", 2): 4 * 5 * 64 * 4 + 20 * 4 + 20 * 2, ("all-gather", 4): 4 * 64}
    assert counted("%a = f32[] add(%b, %c)") == Counter()
