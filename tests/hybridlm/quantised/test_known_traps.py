"""Quantised files that other loaders have read wrongly, each by the report that describes it.

Other traps have their tests where they belong: scale rows of fused projections and lists with a corrupt suffix in
test_published_layouts; names of wrappers, scales of one number and configurations in test_quantised_groups; infinities
of config.json in test_checkpoint_directory.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantised_checkpoint import LAYOUTS, Layout, Stored, write_quantised, write_tensors
from random_checkpoint import write_random_checkpoint

from hybridlm.checkpoint import CheckpointError, SafetensorsFile, load_parameters
from hybridlm.checkpoint.model import open_model

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def read(folder: Path, head: bool = False) -> dict[Any, np.ndarray]:
    return {path: np.asarray(one) for path, one in load_parameters(*open_model(folder, head), "float32").arrays.items()}


def check_equal(folder: Path, head: bool = False) -> None:
    found, expected = read(folder / "quantised", head), read(folder / "plain", head)
    for path, array in expected.items():
        np.testing.assert_array_equal(found[path], array, err_msg=str(path))


def changed(folder: Path, change: Callable[[dict[str, Stored]], Any]) -> None:
    path = folder / "quantised" / "model.safetensors"
    file = SafetensorsFile(path)
    tensors = {name: (info.dtype, file.read_stored(name).copy()) for name, info in file.tensors.items()}
    change(tensors)
    path.unlink()
    write_tensors(path, tensors)


def only(pattern: str, layout: str) -> Callable[[str], Layout | None]:
    return lambda name: LAYOUTS[layout] if pattern in name else None


@pytest.mark.parametrize("layout", ["modelopt-nvfp4", "ct-nvfp4", "ct-mxfp4"])
def test_bytes_of_four_bit_codes_are_never_weights(tmp_path: Path, layout: str) -> None:
    """imp #812: scales that a loader did not know, so that the bytes were the weights."""
    folder, names = write_quantised(
        GOLDEN / "sparse_base", tmp_path / "c", only("up_proj", layout), LAYOUTS[layout].config
    )
    assert names
    scales = [name + end for name in names for end in ("_scale", "_scale_2", "_global_scale")]
    changed(folder, lambda tensors: [tensors.pop(one, None) for one in scales])
    with pytest.raises(CheckpointError) as caught:
        read(folder / "quantised")
    assert len([fault for fault in caught.value.faults if "up_proj" in fault]) >= len(names)


@pytest.mark.parametrize("layout", ["ct-int8", "fp8-block-bf16"])
def test_codes_of_a_prediction_head_are_dequantised(tmp_path: Path, layout: str) -> None:
    """sglang-das #378: int8 codes of mtp.fc that were copied into bfloat16."""
    write_random_checkpoint("sparse_base", tmp_path / "model", head=True)
    folder, names = write_quantised(tmp_path / "model", tmp_path / "c", only("mtp.", layout), LAYOUTS[layout].config)
    assert any(name.endswith("mtp.fc.weight") for name in names)
    check_equal(folder, head=True)


def test_plain_numbers_in_a_quantised_slot(tmp_path: Path) -> None:
    """ATOM #755: the files have plain numbers where scales are expected, and scales that nobody wrote."""
    layout = LAYOUTS["modelopt-fp8"]
    folder, names = write_quantised(
        GOLDEN / "dense_interval", tmp_path / "c", only("proj", "modelopt-fp8"), layout.config
    )
    plain = SafetensorsFile(folder / "plain" / "model.safetensors").read(names[0])

    def without(tensors: dict[str, Stored], scale: bool) -> None:
        tensors[names[0]] = ("F32", np.array(plain))
        if not scale:
            tensors.pop(names[0] + "_scale", None)

    changed(folder, lambda tensors: without(tensors, scale=False))
    check_equal(folder)
    changed(
        folder,
        lambda tensors: (
            without(tensors, scale=True) or tensors.update({names[0] + "_scale": ("F32", np.ones((), np.float32))})
        ),
    )
    with pytest.raises(CheckpointError, match="leftover"):
        read(folder / "quantised")


@pytest.mark.parametrize("layout", ["fp8-block-bf16", "modelopt-fp8-blocks", "ct-fp8-rows"])
def test_scale_rows_follow_the_rows_of_a_fused_projection(tmp_path: Path, layout: str) -> None:
    """mcore-bridge #30, TRT-LLM #15067: blocks of scales that were split as if they were rows."""
    one = LAYOUTS[layout]
    folder, names = write_quantised(
        GOLDEN / "next_dense_layers", tmp_path / "c", only("in_proj_qkvz", layout), one.config
    )
    assert names
    check_equal(folder)


def test_small_gates_may_be_quantised_too(tmp_path: Path) -> None:
    """auto-round #1496: in_proj_a and in_proj_b, of few rows."""
    folder, names = write_quantised(
        GOLDEN / "sparse_base", tmp_path / "c", only("linear_attn.in_proj_", "ct-int4"), LAYOUTS["ct-int4"].config
    )
    assert any("in_proj_a" in name for name in names) and any("in_proj_b" in name for name in names)
    check_equal(folder)
