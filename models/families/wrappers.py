"""Models around a supported text model.

Sources: classes of transformers 5.24 (and its `lfm2_audio`), names in its `conversion_mapping` and in vLLM.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from models.config.fields import read_placeholders
from models.config.reader import ConfigError, ConfigReader
from models.decoder.decoder import DecoderConfig
from models.families.family import Family

TEXT_CONFIGS = ("text_config", "llm_config", "lfm")
"""Keys of the text model's configuration in an outer config.json."""
INHERITED = ("dtype", "torch_dtype", "eos_token_id")
"""Outer fields with precedence over null or absent ones of the text model."""


@dataclass(frozen=True)
class Wrapper:
    """A model around a text model.

    Attributes:
        model_types: of the outer config.json.
        architectures: classes of the whole model; () accepts every class.
        text: default text `model_type`, or None.
        renamed: regular expression -> replacement, to the text model's tensor names.
        skipped: full-match regular expressions of other parts.
        tied: default of the outer `tie_word_embeddings`; None for the text model's.
        placeholders: field -> default id of placeholder tokens.
        text_types: further `model_type`s that mean `text`.
    """

    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    text: str | None = None
    renamed: tuple[tuple[str, str], ...] = ()
    skipped: tuple[str, ...] = ()
    tied: bool | None = None
    placeholders: tuple[tuple[str, int], ...] = ()
    text_types: tuple[str, ...] = ()

    def text_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the text model's config.json; raises ConfigError for none or several."""
        keys = [key for key in TEXT_CONFIGS if config.get(key) is not None]
        if not keys or any(not isinstance(config[key], Mapping) or config[key] != config[keys[0]] for key in keys):
            values = ", ".join(f"{key}: {config[key]!r:.100}" for key in keys) or "none"
            expected = f"text_config: expected an object (or {' or '.join(TEXT_CONFIGS[1:])}), one of them"
            raise ConfigError(self.model_types[0], [f"{expected}, found {values}"])
        inner = dict(config[keys[0]])
        if inner.get("model_type") in (None, *self.text_types) and self.text is not None:
            inner["model_type"] = self.text
        inherited = {name: config[name] for name in INHERITED if config.get(name) is not None}
        return inherited | {name: value for name, value in inner.items() if value is not None or name not in inherited}

    def family(self, below: Family) -> Family:
        """Return the text model's family with the whole model's tensor names."""

        def read(fields: Mapping[str, Any]) -> DecoderConfig:
            return self._read(below, fields)

        return replace(
            below,
            read_config=read,
            skipped=(*below.skipped, *self.skipped),
            renamed=(*self.renamed, *below.renamed),
            with_head=None if below.with_head is None else self.family(below.with_head),
        )

    def _read(self, below: Family, config: Mapping[str, Any]) -> DecoderConfig:
        reader = ConfigReader(self.model_types[0], config)
        tied = self.tied
        if tied is not None:
            tied = reader.flag("tie_embedding" if "tie_embedding" in reader else "tie_word_embeddings", tied)
        placeholders = read_placeholders(reader, dict(self.placeholders))
        reader.close()
        decoder = below.read_config(self.text_config(config))
        placeholders = tuple(sorted({*placeholders, *decoder.placeholders}))
        return replace(decoder, tied=decoder.tied if tied is None else tied, placeholders=placeholders)


def _parts(*names: str) -> tuple[str, ...]:
    """Return regular expressions of these modules' tensors, with and without `model.`."""
    return tuple(rf"(model\.)?{name}\..*" for name in names)


LANGUAGE_MODEL = ((r"model\.language_model\.", "model."), (r"language_model\.", ""))
"""Text model inside transformers' classes: below the head, or with a head in older files."""
_MINICPM_PARTS = _parts("vision_tower", "merger")
JEV = "jev"
"""`model_type` of a decision model of transformers: a text model with a linear head."""
JEV_HEAD = (r"proj\.weight", r"proj\.bias")

WRAPPERS = (
    Wrapper((JEV,), ("JevForDecision",), skipped=JEV_HEAD),
    Wrapper(
        ("lfm2_vl", "lfm2-vl"),
        ("Lfm2VlForConditionalGeneration", "Lfm2VlModel"),
        "lfm2",
        LANGUAGE_MODEL,
        _parts("vision_tower", "multi_modal_projector"),
        tied=True,
        placeholders=(("image_token_id", 396),),
    ),
    Wrapper(
        ("lfm2_audio",),
        ("Lfm2AudioForConditionalGeneration", "Lfm2AudioModel"),
        "lfm2",
        ((r"(model\.)?lfm\.", "model."),),
        _parts("conformer", "audio_adapter", "audio_embedding", "depthformer", "depth_linear", "depth_embeddings"),
        tied=True,
        placeholders=(("audio_token_id", 133),),
    ),
    *(
        Wrapper(
            (name,), (f"{stem}ForConditionalGeneration", f"{stem}Model"), "qwen3_5_text", LANGUAGE_MODEL, parts, tied
        )
        for name, stem, parts, tied in (
            ("minicpmv4_6", "MiniCPMV4_6", _MINICPM_PARTS, False),
            ("minicpmv4_7", "MiniCPMV4_7", _MINICPM_PARTS, False),
            ("minicpm_ocr", "MiniCPMOcr", _MINICPM_PARTS, True),
        )
    ),
    Wrapper(
        (
            "nemotron_h_omni",
            "NemotronH_Nano_VL_V2",
            "NemotronH_Nano_Omni_Reasoning_V3",
            "NemotronH_Super_Omni_Reasoning_V3",
        ),
        (
            "NemotronH_Omni_Reasoning_V3",
            "NemotronH_Nano_VL_V2",
            "NemotronH_Nano_Omni_Reasoning_V3",
            "NemotronH_Super_Omni_Reasoning_V3",
        ),
        "nemotron_h",
        LANGUAGE_MODEL,
        _parts(
            *("vision_model", "vision_projector", "vision_final_layernorm", "mlp1", "multi_modal_projector"),
            *("sound_encoder", "sound_projection", "audio_tower", "embed_audio"),
        ),
    ),
    Wrapper(
        ("nemo_speechlm", "nemotron3_5_transcribe"),
        ("Nemotron3_5TranscribeForConditionalGeneration", "Nemotron3_5TranscribeModel"),
        "nemotron_h",
        (
            # Export of NeMo renames parts of the decoder.
            (r"llm\.model\.embed_tokens\.", "backbone.embeddings."),
            (r"llm\.model\.norm\.", "backbone.norm_f."),
            (r"llm\.model\.(layers\.\d+\.mixer\.)_fp32_params\.", r"backbone.\1"),
            (r"llm\.model\.", "backbone."),
            (r"llm\.", ""),
            *LANGUAGE_MODEL,
        ),
        (
            *_parts("audio_tower", "multi_modal_projector", "word_timestamp_encoder", "word_timestamp_head"),
            *_parts("perception", "ctc_timestamp"),
            r".*\._extra_state",
        ),
        tied=False,
        placeholders=(("audio_token_id", 131_072),),
    ),
    Wrapper(
        ("intern_s2", "intern_s2_preview", "interns2_preview"),
        ("InternS2PreviewForConditionalGeneration", "InternS2PreviewForCausalLM", "InternS2PreviewModel"),
        "qwen3_5_moe_text",
        LANGUAGE_MODEL,
        _parts("visual", "time_series", "time_series_forecaster"),
        tied=False,
        text_types=("intern_s2_preview_text", "interns2_preview_text"),
    ),
    Wrapper(
        ("bailing_moe_v3_vl",),
        ("BailingMoeV3VLForConditionalGeneration", "BailingMoeV3VLModel"),
        "bailing_hybrid",
        LANGUAGE_MODEL,
        _parts("visual", "linear_proj"),
    ),
)


def wrapper_of(config: Mapping[str, Any]) -> Wrapper | None:
    return next((wrapper for wrapper in WRAPPERS if config.get("model_type") in wrapper.model_types), None)


def text_fields(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the text model's part of a config.json, or {}."""
    return next((config[key] for key in TEXT_CONFIGS if isinstance(config.get(key), Mapping)), {})
