"""Multimodal models by transformers: the text model equals the whole on text."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison import TOLERANCES, check_logits, padded
from tiny_variants import variant

import hybridlm

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")
pytestmark = pytest.mark.oracle
IMAGE, VIDEO = 330, 329
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
MINICPM_VISION = VISION | {"image_size": 8, "patch_size": 4}
SIGLIP = MINICPM_VISION | {"model_type": "siglip2_vision_model", "num_patches": 4}
RADIO = VISION | {"image_size": 32, "patch_size": 16, "video_temporal_patch_size": 2}
RNG = np.random.default_rng(0)
TEXTS = [[int(i) for i in RNG.integers(3, 320, count)] for count in (1, 5, 23, 40)]


def text(name: str, model_type: str) -> dict[str, Any]:
    return dict(variant(name).text) | {"model_type": model_type}


def minicpm(stem: str) -> Any:
    config = getattr(hf, f"{stem}Config")(
        text_config=text("dense_base", "qwen3_5_text"),
        vision_config=MINICPM_VISION,
        insert_layer_id=0,
        image_token_id=IMAGE,
        video_token_id=VIDEO,
    )
    return getattr(hf, f"{stem}ForConditionalGeneration")(config)


def lfm2_vl() -> Any:
    config = hf.Lfm2VlConfig(
        text_config=text("lfm2_base", "lfm2"), vision_config=SIGLIP, image_token_id=IMAGE, projector_hidden_size=16
    )
    return hf.Lfm2VlForConditionalGeneration(config)


def nemotron_omni() -> Any:
    config = hf.NemotronH_Omni_Reasoning_V3_Config(
        text_config=text("nemotron_latent", "nemotron_h"),
        vision_config=RADIO,
        vision_hidden_size=16,
        projector_hidden_size=16,
        image_token_id=IMAGE,
    )
    return hf.NemotronH_Omni_Reasoning_V3(config)


MODELS: dict[str, Callable[[], Any]] = {
    "lfm2_vl": lfm2_vl,
    "minicpmv4_6": lambda: minicpm("MiniCPMV4_6"),
    "minicpmv4_7": lambda: minicpm("MiniCPMV4_7"),
    "minicpm_ocr": lambda: minicpm("MiniCPMOcr"),
    "nemotron_h_omni": nemotron_omni,
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ("lfm2_vl", "nemotron_h_omni") else pytest.mark.long) for name in MODELS],
)
def test_text_through_the_whole_model(tmp_path: Path, name: str) -> None:
    torch.manual_seed(3)
    model = MODELS[name]().eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    for module in model.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = (0.0, math.inf)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = [model(input_ids=torch.tensor([ids])).logits[0].float().numpy() for ids in TEXTS]
    lm = hybridlm.load(tmp_path, lanes=2, context=128, dtype="float32", chunk=16)
    array = np.asarray(lm.forward(padded(TEXTS)).logits)
    tolerance = TOLERANCES[lm.config.family]
    for index, (row, logits) in enumerate(zip(array, expected, strict=True)):
        assert not check_logits(row[: len(logits)], logits, f"{name}, text {index}", tolerance)
    with pytest.raises(ValueError, match="stands for an image"):
        lm.generate([[4, IMAGE]])
