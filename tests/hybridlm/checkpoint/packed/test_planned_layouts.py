"""Layouts of packed weights: of the devices' parts, and of planned copies."""

from pathlib import Path
from typing import Any

import pytest
from jax.sharding import NamedSharding, PartitionSpec

import hybridlm
from hybridlm.checkpoint import Shards, open_model, packed_parameters
from hybridlm.checkpoint.packed.layout import packed_layout
from hybridlm.checkpoint.packed.parameters import laid_out
from hybridlm.checkpoint.quantise import Recipe, forms_of_copy, quantise_checkpoint
from hybridlm.quantised import PackedForm
from models import Segment, ShardedDim


def test_groups_that_devices_divide() -> None:
    """Half a group becomes a group; a fourth is too narrow or no whole byte."""
    mesh = hybridlm.mesh(model=4)
    spec = NamedSharding(mesh, PartitionSpec(None, "model"))

    def groups(kind: Any, inputs: int, group: int) -> int | None:
        form = PackedForm(kind, inputs, inputs // group, "bfloat16", False, None)
        shards = Shards((6, inputs), (ShardedDim(1, "model", (Segment(inputs, inputs),)),), spec)
        layout = packed_layout(form, shards)
        return None if layout is None else layout.groups

    assert (groups("int8", 128, 32), groups("int8", 64, 32), groups("int8", 48, 16)) == (4, 4, None)
    assert (groups("int8", 36, 36), groups("int4", 36, 36), groups("int4", 64, 64)) == (4, None, 4)


GOLDEN = Path(__file__).resolve().parents[3] / "golden"


@pytest.mark.parametrize(
    "golden", ["sparse_base", "dense_interval", "nemotron_latent", "kimi_base", "next_dense_layers"]
)
def test_planned_forms_match_a_copy(tmp_path: Path, golden: str) -> None:
    every: dict[str, dict[str, Any]] = {
        "fp8-block": {},
        "int8": {},
        "int4": {"group_size": 8},
        "nvfp4": {"mixers": True, "head": True},
    }
    for scheme, of in every.items():
        quantise_checkpoint(GOLDEN / golden, tmp_path / scheme, scheme=scheme, **of)
        model = open_model(tmp_path / scheme)
        weights = model.family.weights(model.config)
        expected = packed_parameters(model, "bfloat16", "whole").types
        shards = {weight.path: Shards(tuple(weight.shape)) for weight in weights}
        forms = forms_of_copy(weights, Recipe.of(scheme, **of))
        assert expected and laid_out(forms, shards, "bfloat16", "whole").types == expected
