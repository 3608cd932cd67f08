"""Copies that `hybridlm quantise` writes, read by compressed-tensors: its configuration, numbers and codes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run_command

from hybridlm.checkpoint import CheckpointDirectory, open_checkpoint

pytestmark = pytest.mark.oracle
GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.mark.parametrize("golden", ["dense_interval", "sparse_base", "nemotron_latent"])
@pytest.mark.parametrize(
    ("name", "group"), [("fp8-block", None), ("int8", None), ("int8", 8), ("int4", 8), ("nvfp4", None)]
)
@pytest.mark.parametrize("every", [False, True], ids=["recommended", "every matrix"])
def test_copies_are_read(tmp_path: Path, golden: str, name: str, group: int | None, every: bool) -> None:
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.format import infer_module_format
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationConfig
    from safetensors.torch import load_file

    out = tmp_path / "out"
    options = [*(["--group-size", str(group)] if group else []), *(["--mixers", "--head"] if every else [])]
    run_command("quantise", GOLDEN / golden, out, "--scheme", name, *options)
    original, stream = open_checkpoint(GOLDEN / golden), open_checkpoint(out)
    assert isinstance(stream, CheckpointDirectory) and isinstance(original, CheckpointDirectory)
    settings = json.loads((out / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig.model_validate(settings)
    schemes = dict[str, Any](config.config_groups)
    assert [scheme.targets for scheme in schemes.values()] == [["Linear"], ["Embedding", "re:.*lm_head$"]][: 1 + every]
    forms = {key: infer_module_format(torch.nn.Linear, scheme).value for key, scheme in schemes.items()}
    assert forms == {key: scheme.format for key, scheme in schemes.items()}
    assert settings["format"] == (forms["group_0"] if len(set(forms.values())) == 1 else "mixed-precision")
    tensors = {key: value for file in out.glob("*.safetensors") for key, value in load_file(file).items()}
    outer = [name for name in original.files if "embed" in name or name.startswith("lm_head")]
    assert len(outer) == 2 and all((name in stream.grouped.quantised) == every for name in outer)
    # Fields that the library does not know would be dropped by it.
    assert settings.keys() <= {*config.model_dump(), "quant_method"}
    for weight, quantised in stream.grouped.quantised.items():
        module = weight.removesuffix("weight")
        key = "group_1" if "embed" in weight or "lm_head" in weight else "group_0"
        scheme, compressor = schemes[key], BaseCompressor.get_value_from_registry(forms[key])
        stored: dict[str, Any] = {key.removeprefix(module): value for key, value in tensors.items()
                                  if key.startswith(module + "weight")}  # fmt: skip
        actual = stream.read(weight)
        # The library computes in the dtype of the scales.
        wide = {key: value.float() if value.dtype == torch.bfloat16 else value for key, value in stored.items()}
        if forms[key] == "nvfp4-pack-quantized":
            # Its own product is rounded to bfloat16.
            codes = unpack_fp4_from_uint8(stored["weight_packed"], *quantised.shape, dtype=torch.float32)
            factor = stored["weight_scale"].float() / stored["weight_global_scale"]
            expected = (codes.reshape(quantised.shape[0], -1, 16) * factor[..., None]).reshape(quantised.shape)
        else:
            expected = dict[str, Any](compressor.decompress(dict(wide), scheme))["weight"].float()
        np.testing.assert_allclose(actual, expected.numpy(), rtol=2**-22, atol=0)
        if weight not in original.files:
            continue
        # The same codes as the library's, for the same scales.
        state = {key: value.float() for key, value in wide.items() if "scale" in key}
        state["weight"] = torch.from_numpy(original.read(weight).astype(np.float32))
        if name != "fp8-block":
            setting = dict[str, Any](compressor.compress(state, scheme))["weight_packed"]
            different = (setting.view(torch.uint8) != stored["weight_packed"].view(torch.uint8)).float().mean()
            # A number in the middle between two codes, by the last bit of a quotient.
            assert different < 0.01
