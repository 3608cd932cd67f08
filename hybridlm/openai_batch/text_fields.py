"""Fields of a request's body about sampling, structured outputs, text and the chat template."""

from typing import Any

from hybridlm.openai_batch.fields import (
    ANYTHING,
    BOOLEAN,
    LIST,
    NUMBER,
    OBJECT,
    STRING,
    TOKEN_IDS,
    Fields,
    among,
    shown,
    whole,
)

_MAX_INT = 2**31 - 1
GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
"""Older names of vLLM for `structured_outputs`."""
EFFORT = among("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Values of `reasoning_effort` of OpenAI's API and of vLLM."""


def take_sampling_fields(body: Fields) -> dict[str, Any]:
    """Take the penalties, bans and text options of vLLM; return fields of `SamplingParams`, checked there."""
    return {
        "repetition_penalty": body.take("repetition_penalty", NUMBER, 1.0),
        "presence_penalty": body.take("presence_penalty", NUMBER, 0.0),
        "frequency_penalty": body.take("frequency_penalty", NUMBER, 0.0),
        "logit_bias": body.take("logit_bias", OBJECT),
        "min_tokens": body.take("min_tokens", whole(0, _MAX_INT), 0),
        "bad_words": body.take("bad_words", LIST, []),
        "allowed_token_ids": body.take("allowed_token_ids", TOKEN_IDS),
        "skip_special_tokens": body.take("skip_special_tokens", BOOLEAN, True),
        "keep_tool_markers": body.take("keep_tool_markers", BOOLEAN, False),
        "thinking_budget": body.take("thinking_token_budget", whole(1, _MAX_INT)),
        "think_end": body.take("think_end", STRING),
        "structured_outputs": _take_structured_outputs(body),
    }


def _take_structured_outputs(body: Fields) -> dict[str, Any] | None:
    """Take the form of the answer under its names; return `structured_outputs`."""
    forms = []
    for name, key in GUIDED.items():
        value = body.take(name, ANYTHING)
        if value is not None:
            forms.append((name, {key: value}))
    outputs = body.take("structured_outputs", OBJECT)
    if outputs is not None:
        forms.append(("structured_outputs", {key: value for key, value in outputs.items() if value is not None}))
    form = body.take("response_format", OBJECT, {"type": "text"})
    schema = form.get("json_schema")
    if form.get("type") == "json_object":
        forms.append(("response_format", {"json_object": True}))
    elif form.get("type") == "json_schema" and isinstance(schema, dict) and isinstance(schema.get("schema"), dict):
        forms.append(("response_format", {"json": schema["schema"]}))
    elif form != {"type": "text"}:
        kinds = '{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {"schema": {...}}}'
        body.fault(f"response_format: expected {kinds}, got {shown(form)}")
    if len(forms) > 1:
        body.fault(f"{' and '.join(name for name, _ in forms)}: give one of them")
    return forms[0][1] if forms else None


def take_chat_fields(body: Fields) -> tuple[dict[str, Any], str | None]:
    """Take the fields about the chat template; return arguments of `Tokenizer.encode_chat` and the reasoning effort."""
    variables = dict(body.take("chat_template_kwargs", OBJECT, {}))
    effort = body.take("reasoning_effort", EFFORT)
    if effort is not None and "reasoning_effort" in variables:
        body.fault("reasoning_effort: is in chat_template_kwargs, too; give one of them")
    for name, kind in (("documents", LIST), ("chat_template", STRING), ("add_generation_prompt", BOOLEAN)):
        value = body.take(name, kind)
        if value is not None:
            variables[name] = value
    if body.take("continue_final_message", BOOLEAN, False):
        variables["continue_final_message"] = True
    return variables, effort
