"""The files of a decision model without its weights: prompts and the answer head.

decision.json, decision_template.jinja     labels, temperatures and the prompt; of any model
judge_config.json, calibration.json        the same of a `jev` model, and the slots of its head
head.safetensors                           that head
config.json of "jev"                       slots of a head among the model's tensors, as transformers saves it
decision_config.json, readout.safetensors  the same of a pplx-decider or d3 model with causal attention
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hybridlm.checkpoint.adapters import DECISION as CONFIG
from hybridlm.checkpoint.adapters import JUDGE
from hybridlm.checkpoint.directory import read_config
from hybridlm.decision_models.decider_prompt import WORDS, decider_template
from hybridlm.decision_models.heads import MAX_OPTIONS, MODEL, SlotHead, read_tensors, saved_head
from hybridlm.decision_models.questions import KINDS
from hybridlm.errors import CheckpointError
from hybridlm.files.strict_json import MEGABYTE, is_positive, read_object, read_text
from ir_passes.files.user_warnings import warn_user
from models import JEV

TEMPLATE = "decision_template.jinja"
CALIBRATION, HEAD = "calibration.json", "head.safetensors"
DECIDER, READOUT = "decision_config.json", "readout.safetensors"
OTHER_HEADS = {"joint_head.safetensors": "clef", "head.pt": "kev, and no safetensors file"}
"""Unimplemented heads, which read several places of a question."""
OTHER_MODELS = re.compile(r"(?<!\bJev)ForDecision$|TypedDecisions$|^Decision2Model$")
"""Architectures of decision models with unsupported heads."""
READ = {"labels", "temperature", "chat_template", "noul_options", "sanitize_control_tokens", "adapter"}
MAX_CONFIG_BYTES = MEGABYTE
MAX_TEMPLATE_BYTES = 4 * MEGABYTE

JEV_TEMPLATE = """
{%- macro plain(x) %}{% if x is none %}{% elif x is string %}{{ x }}{% else %}{{ x|tojson }}{% endif %}{% endmacro -%}
{%- macro whole(x) -%}
{%- if x is string or x is mapping %}{{ plain(x) }}
{%- else -%}
{%- for part in x -%}
{%- if part is mapping and ("image" in part or part.get("type") == "image_url") -%}
{{ raise_exception("images are not supported") }}
{%- elif part is mapping and part.get("type") == "text" %}{{ part["text"] }}
{%- else %}{{ plain(part) }}{% endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{{- "[kind] " ~ question.type ~ "\\n[state] " ~ whole(state) -}}
{{- "\\n[question] " ~ plain(question.instructions) ~ "\\n[options]\\n" -}}
{%- for option in question.options -%}
{%- set said = question.descriptions[loop.index0] -%}
{%- if question.type == "choice" -%}
{{- question.labels[loop.index0] ~ ") " ~ option ~ (": " ~ plain(said) if said is not none and said != "" else "") -}}
{%- else %}{{ option }}{% endif -%}
{{- "\\n" if not loop.last else "" -}}
{%- endfor -%}
{{- "\\n[decision]:<|mark|>" -}}
"""
"""Prompt of `jev` checkpoints without a template ("bare-v1")."""


@dataclass(frozen=True)
class DecisionSettings:
    """Settings for questions and answers.

    Attributes:
        labels: of options by type; default Yes and No, or letters.
        temperature: divisor of scores by type; default 1.
        template: source; None for the generic prompt in the chat template.
        noul_options: order of "noul" options.
        sanitize_control_tokens: control tokens in requests are plain text.
        head: None for logits of labels.
    """

    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    temperature: Mapping[str, float] = field(default_factory=dict)
    template: str | None = None
    noul_options: tuple[str, ...] = ("true", "false")
    sanitize_control_tokens: bool = True
    adapter: str | None = None
    head: SlotHead | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of all settings."""
        head = self.head
        digest = hashlib.sha256(repr((self.labels, self.temperature, self.template, self.noul_options)).encode())
        digest.update(repr((self.sanitize_control_tokens, head and (head.softcap, head.offsets))).encode())
        for array in () if head is None else (head.weight, head.bias):
            digest.update(repr(array.shape).encode() + array.tobytes())
        return digest.hexdigest()


def read_settings(directory: Path, hidden_size: int) -> DecisionSettings:
    """Read the files of a decision model; defaults without files.

    Raises:
        CheckpointError: an unreadable file, an invalid value, or an unknown head.
    """
    if not directory.is_dir():
        return DecisionSettings()  # a GGUF file
    fields = read_config(directory / MODEL) if (directory / MODEL).is_file() else {}
    _refuse_other_heads(directory, fields)
    for name, read in ((DECIDER, _of_decider), (JUDGE, _of_judge)):
        if (directory / name).is_file():
            unused = [file_name for file_name in (CONFIG, TEMPLATE) if (directory / file_name).is_file()]
            if unused:
                warn_user(f"{directory}: {' and '.join(unused)}: not used, {name} says it all")
            return read(directory, hidden_size)
    for head, expected_file in ((HEAD, JUDGE), (READOUT, DECIDER)):
        if (directory / head).exists():
            raise CheckpointError(directory, f"expected {expected_file} beside {head}, found none")
    config = read_object(directory / CONFIG, MAX_CONFIG_BYTES) if (directory / CONFIG).is_file() else {}
    template = directory / TEMPLATE
    source = read_text(template, MAX_TEMPLATE_BYTES) if template.is_file() else None
    settings = _of_config(directory / CONFIG, config, source)
    if fields.get("model_type") == JEV:
        return replace(settings, head=saved_head(directory, fields, hidden_size))
    return settings


def _refuse_other_heads(directory: Path, fields: Mapping[str, Any]) -> None:
    """Raise CheckpointError for an unknown head: its answers are no label scores."""
    heads = [f"{name}, the head of {kind}" for name, kind in OTHER_HEADS.items() if (directory / name).exists()]
    names = fields.get("architectures")
    heads += (
        [str(architecture) for architecture in names if OTHER_MODELS.search(str(architecture))]
        if isinstance(names, list)
        else []
    )
    if heads:
        raise CheckpointError(
            directory,
            f"decide: found {' and '.join(heads)}; only labels of chat models and the heads of jev, pplx-decider and "
            "d3 models are implemented",
        )


def _of_decider(directory: Path, hidden_size: int) -> DecisionSettings:
    path = directory / DECIDER
    config = read_object(path, MAX_CONFIG_BYTES)
    codes: Any = config.get("codes")
    temperature: Any = config.get("temperature")
    prompt, mode = config.get("prompt", "pplx"), config.get("attention_mode")
    faults: list[str] = []
    if mode not in (None, "causal"):
        faults.append(f"attention_mode: {mode!r} is not implemented, only causal is")
    labels = _labels(dict.fromkeys(KINDS, codes), faults) if codes else {}
    if not labels:
        faults.append(f"codes: expected a list of labels, found {codes!r}"[:200])
    if not is_positive(temperature):
        faults.append(f"temperature: expected a number greater than 0, found {temperature!r}")
    if prompt not in WORDS:
        faults.append(f"prompt: expected one of {', '.join(WORDS)}, found {prompt!r}")
    if faults:
        raise CheckpointError(path, faults)
    (weight,) = read_tensors(directory / READOUT, {"weight": (len(codes), hidden_size)})
    head = SlotHead(weight, np.zeros(len(codes), np.float32), None, dict.fromkeys(KINDS, 0))
    template = decider_template(prompt)
    temperatures = dict.fromkeys(map(str, KINDS), float(temperature))
    return DecisionSettings(labels, temperatures, template, ("false", "true"), True, None, head)


def _of_config(path: Path, config: Mapping[str, Any], template: str | None) -> DecisionSettings:
    faults: list[str] = []
    unused = sorted(config.keys() - READ)
    if unused:
        warn_user(f"{path}: fields that are not known and not used: {', '.join(unused)}")
    labels, temperature = _labels(config.get("labels") or {}, faults), _numbers(config, "temperature", faults)
    order = config.get("noul_options", ["true", "false"])
    if not isinstance(order, list) or sorted(map(str, order)) != ["false", "true"]:
        faults.append(f"noul_options: expected true and false in some order, found {order!r}")
    sanitize = config.get("sanitize_control_tokens", True)
    if not isinstance(sanitize, bool):
        faults.append(f"sanitize_control_tokens: expected true or false, found {sanitize!r}")
    source = config.get("chat_template") if template is None else template
    if source is not None and not isinstance(source, str):
        faults.append(f"chat_template: expected the source of a template, found {source!r}"[:200])
    if faults:
        raise CheckpointError(path, faults)
    return DecisionSettings(labels, temperature, source, tuple(order), sanitize, config.get("adapter"))


def _of_judge(directory: Path, hidden_size: int) -> DecisionSettings:
    config = read_object(directory / JUDGE, MAX_CONFIG_BYTES)
    calibration = read_object(directory / CALIBRATION, MAX_CONFIG_BYTES)
    faults: list[str] = []
    slots = config.get("slots")
    slots = slots if isinstance(slots, dict) else {}
    names, ranges, count = slots.get("verbalizers"), slots.get("ranges"), slots.get("num_slots")
    if not isinstance(names, list) or not all(isinstance(label, str) for label in names):
        faults.append(f"slots.verbalizers: expected a list of labels, found {names!r}"[:200])
        names = []
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= MAX_OPTIONS:
        faults.append(f"slots.num_slots: expected a number of rows from 1 to {MAX_OPTIONS}, found {count!r}")
        count = 0
    if (
        not isinstance(ranges, dict)
        or not ranges
        or not all(_is_range(row_range, len(names), count) for row_range in ranges.values())
    ):
        faults.append(f"slots.ranges: expected type -> [first row, end] within {len(names)} labels, found {ranges!r}")
        ranges = {}
    if other_types := ranges.keys() - set(KINDS):
        faults.append(f"slots.ranges: expected types of {', '.join(KINDS)}, found {', '.join(sorted(other_types))}")
    softcap = config.get("softcap")
    if softcap is not None and not is_positive(softcap):
        faults.append(f"softcap: expected a number greater than 0 or null, found {softcap!r}")
    if faults:
        raise CheckpointError(directory / JUDGE, faults)
    temperature = _numbers(calibration, "per_kind", faults)
    if faults:
        raise CheckpointError(directory / CALIBRATION, faults)
    labels = {kind: tuple(names[first:end]) for kind, (first, end) in ranges.items()}
    offsets = {kind: first for kind, (first, _) in ranges.items()}
    weight, bias = read_tensors(directory / HEAD, {"proj.weight": (count, hidden_size), "proj.bias": (count,)})
    head = SlotHead(weight, bias, softcap if softcap is None else float(softcap), offsets)
    return DecisionSettings(
        labels, temperature, JEV_TEMPLATE, ("false", "true"), True, config.get("adapter_subfolder", "adapter"), head
    )


def _is_range(value: Any, labels: int, rows: int) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2 and all(type(end) is int for end in value)
    return is_pair and 0 <= value[0] < value[1] <= min(labels, rows)


def _labels(type_labels: Any, faults: list[str]) -> dict[str, tuple[str, ...]]:
    if not isinstance(type_labels, dict):
        faults.append(f"labels: expected type -> list of labels, found {type_labels!r}"[:200])
        return {}
    for kind, labels in type_labels.items():
        good = (
            isinstance(labels, list) and len(labels) <= MAX_OPTIONS and all(isinstance(label, str) for label in labels)
        )
        if kind not in KINDS or not good:
            faults.append(
                f"labels[{kind!r}]: expected a list of labels of one of {', '.join(KINDS)}, found {labels!r}"[:200]
            )
    return {} if faults else {kind: tuple(labels) for kind, labels in type_labels.items()}


def _numbers(config: Mapping[str, Any], name: str, faults: list[str]) -> dict[str, float]:
    temperatures = config.get(name) or {}
    if not isinstance(temperatures, dict) or not all(map(is_positive, temperatures.values())):
        faults.append(f"{name}: expected type -> number greater than 0, found {temperatures!r}"[:200])
        return {}
    return {kind: float(temperature) for kind, temperature in temperatures.items()}
