"""Fields of a request's body that say what is sampled, what of it becomes text, and how a chat is written."""

from typing import Any

from hybridlm.openai_batch.fields import BOOLEAN, LIST, NUMBER, OBJECT, STRING, Fields, whole

_MAX_INT = 2**31 - 1


def take_sampling_fields(body: Fields) -> dict[str, Any]:
    """Take the penalties, bans and text options of vLLM; return fields of `SamplingParams`, checked there."""
    return {
        "repetition_penalty": body.take("repetition_penalty", NUMBER, 1.0),
        "presence_penalty": body.take("presence_penalty", NUMBER, 0.0),
        "frequency_penalty": body.take("frequency_penalty", NUMBER, 0.0),
        "logit_bias": body.take("logit_bias", OBJECT),
        "min_tokens": body.take("min_tokens", whole(0, _MAX_INT), 0),
        "bad_words": body.take("bad_words", LIST, []),
        "skip_special_tokens": body.take("skip_special_tokens", BOOLEAN, True),
        "keep_tool_markers": body.take("keep_tool_markers", BOOLEAN, False),
        "thinking_budget": body.take("thinking_token_budget", whole(1, _MAX_INT)),
        "think_end": body.take("think_end", STRING),
    }


def take_chat_fields(body: Fields) -> dict[str, Any]:
    """Take the fields of vLLM that concern the chat template; return arguments of `Tokenizer.encode_chat`."""
    variables = dict(body.take("chat_template_kwargs", OBJECT, {}))
    for name, kind in (("documents", LIST), ("chat_template", STRING), ("add_generation_prompt", BOOLEAN)):
        value = body.take(name, kind)
        if value is not None:
            variables[name] = value
    if body.take("continue_final_message", BOOLEAN, False):
        variables["continue_final_message"] = True
    return variables
