"""Requests from lines of an OpenAI Batch file.

    {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once", "max_tokens": 8}}

Bodies are as in `vllm run-batch` for the two endpoints below. Sampling settings are fields of `SamplingParams`,
with OpenAI's defaults. Unsupported fields are errors, never ignored.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hybridlm.engine.inputs import Inputs
from hybridlm.openai_batch.fields import (
    ANYTHING,
    BOOLEAN,
    LIST,
    NUMBER,
    OBJECT,
    STRING,
    STRINGS,
    TOKEN_IDS,
    Fields,
    among,
    shown,
    whole,
)
from hybridlm.openai_batch.prompts import (
    CHAT,
    COMPLETIONS,
    TokenizedPrompt,
    chat_prompt,
    completion_prompts,
    take_truncation,
)
from hybridlm.requests.sampling_params import SamplingParams
from hybridlm.requests.sequence import Request
from hybridlm.text.chat_template import faults_of_tools, joined_variables

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default `max_tokens` of completions; chats may fill the context."""
MAX_CHOICES = 1024
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "stream": (False,), "stream_options": ({},), "store": (False,), "length_penalty": (1,),
    "service_tier": ("auto", "default"), "use_beam_search": (False,),
    "spaces_between_special_tokens": (True,), "include_stop_str_in_output": (False,), "detokenize": (True,),
    "logits_processors": ([],), "priority": (0,),
}  # fmt: skip
"""Unsupported fields with their values without effect."""
OF_COMPLETIONS: Mapping[str, tuple[Any, ...]] = {
    "suffix": ("",), "add_special_tokens": (True,), "tools": ([],), "tool_choice": ("none", "auto"),
}  # fmt: skip
OF_CHATS: Mapping[str, tuple[Any, ...]] = {
    "functions": ([],), "function_call": ("none", "auto"), "modalities": (["text"],), "verbosity": ("medium",),
    "add_special_tokens": (False,), "echo": (False,), "include_reasoning": (True,), "mm_processor_kwargs": ({},),
}  # fmt: skip
LABELS = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "request_id",
    "session_id",
    "cache_salt",
)
"""Bookkeeping fields of a service, of any value."""
OTHER_ENDPOINTS: Mapping[str, str] = {
    "/v1/embeddings": "embeddings are not computed here",
    "/v1/responses": "send the messages to /v1/chat/completions",
    "/v1/score": "`hybridlm score` gives log-probabilities of texts",
    "/v1/rerank": "this is no reranking model",
    "/v1/moderations": "this is no moderation model",
}
"""Unsupported endpoints, and advice."""
GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
"""Older names of vLLM for `structured_outputs`."""
EFFORT = among("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Values of `reasoning_effort` of OpenAI and vLLM."""


@dataclass(frozen=True)
class OpenAIRequest:
    """The request on one line.

    Attributes:
        model, user: unchecked; None if absent.
        requests: numbered from 0: choices of the first prompt, then of the second; empty for an echo alone.
        top: report log-probabilities of tokens and this many most likely ones.
        names_are_ids: name tokens "token_id:N" instead of by their text.
    """

    chat: bool
    model: Any
    user: Any
    prompts: list[TokenizedPrompt]
    requests: list[Request]
    echo: bool
    top: int | None
    token_ids: bool
    names_are_ids: bool

    @property
    def prompt_top(self) -> int | None:
        """Most likely tokens at each prompt token; None without `prompt_logprobs`."""
        return self.requests[0].params.prompt_logprobs if self.requests else None

    @property
    def scored(self) -> bool:
        return self.echo and self.top is not None


def read_request(value: Mapping[str, Any], inputs: Inputs) -> OpenAIRequest:
    """Read a request from a line; raises TypeError or ValueError with all faults."""
    line = Fields(value)
    custom_id, method, url = line.need("custom_id", STRING), line.need("method", STRING), line.need("url", STRING)
    body = line.need("body", OBJECT)
    if method is not None and method != "POST":
        line.fault(f"method: expected POST, got {method!r}")
    if url is not None and url not in (COMPLETIONS, CHAT):
        hint = next((hint for place, hint in OTHER_ENDPOINTS.items() if place.endswith(f"/{url.split('/')[-1]}")), "")
        line.fault(f"url: expected {COMPLETIONS} or {CHAT}, got {url!r}" + (f" ({hint})" if hint else ""))
    line.finish({})
    return _read_body(custom_id, url == CHAT, Fields(body), inputs)


def _read_body(custom_id: str, chat: bool, body: Fields, inputs: Inputs) -> OpenAIRequest:
    model, user = body.take("model", ANYTHING), body.take("user", ANYTHING)
    prompt = body.need("messages", LIST) if chat else body.need("prompt", ANYTHING)
    variables, effort = _take_chat_fields(body) if chat else ({}, None)
    tools = _take_tools(body) if chat else []
    for label in LABELS:
        body.take(label, ANYTHING)
    echo = body.take("echo", BOOLEAN, False) if not chat else False
    top = _take_logprobs(body, chat, inputs.max_logprobs)
    of_prompt = body.take("prompt_logprobs", whole(0, inputs.max_logprobs))
    n = body.take("n", whole(1, MAX_CHOICES), 1)
    if not chat and body.take("best_of", whole(1, MAX_CHOICES), n) != n:
        body.fault(f"best_of: is supported only with the value of n ({n})")
    max_tokens = _take_max_tokens(body, chat, inputs.context)
    truncation = take_truncation(body, max_tokens, inputs.context)
    sampling = _take_sampling(body, custom_id)
    token_ids = body.take("return_token_ids", BOOLEAN, inputs.tokenizer is None)
    names_are_ids = body.take("return_tokens_as_token_ids", BOOLEAN, inputs.tokenizer is None)
    if not names_are_ids and inputs.tokenizer is None:
        body.fault("return_tokens_as_token_ids: expected true, because the checkpoint has no tokenizer.json")
    if max_tokens == 0 and not echo:
        body.fault("max_tokens: 0 only makes sense with echo")
    if max_tokens == 0 and of_prompt is not None:
        body.fault("prompt_logprobs: needs max_tokens of at least 1; with 0, echo and logprobs report the prompt")
    body.finish({**NEUTRAL, **(OF_CHATS if chat else OF_COMPLETIONS)})
    if chat:
        prompts = [chat_prompt(prompt, variables, effort, tools, inputs, truncation)]
    else:
        prompts = completion_prompts(prompt, inputs, truncation)
    if max_tokens == inputs.context and inputs.cache is not None:  # a chat without a limit
        max_tokens = inputs.room(prompts[0].token_ids)
    params = replace(sampling, max_tokens=max(max_tokens, 1), logprobs=top, prompt_logprobs=of_prompt)
    requests = inputs.requests([list(prompt.token_ids) for prompt in prompts], n, params)
    if max_tokens == 0:
        requests = []
        if n != 1:
            raise ValueError("n: expected 1 if only the prompt is echoed (max_tokens is 0)")
    return OpenAIRequest(chat, model, user, prompts, requests, echo, top, token_ids, names_are_ids)


def _take_logprobs(body: Fields, chat: bool, maximum: int) -> int | None:
    if not chat:
        return body.take("logprobs", whole(0, maximum))
    wanted = body.take("logprobs", BOOLEAN, False)
    top = body.take("top_logprobs", whole(0, maximum))
    if top is not None and not wanted:
        body.fault("top_logprobs: needs logprobs: true")
    return (top or 0) if wanted else None


def _take_max_tokens(body: Fields, chat: bool, context: int) -> int:
    kind = whole(1 if chat else 0, 2**31 - 1)
    limits = [body.take(name, kind) for name in (["max_completion_tokens"] if chat else []) + ["max_tokens"]]
    limits = [limit for limit in limits if limit is not None]
    if len(set(limits)) > 1:
        body.fault(f"max_completion_tokens: is {limits[0]}, max_tokens is {limits[1]}; give one of them")
    return limits[0] if limits else context if chat else DEFAULT_COMPLETION_TOKENS


def _take_sampling(body: Fields, custom_id: str) -> SamplingParams:
    stop = body.take("stop", STRINGS, [])
    seed = body.take("seed", whole(-1, 2**64 - 1), -1)
    if seed == -1:  # no seed, as in vLLM
        # By custom_id alone: lines differ, and their order has no influence.
        seed = int.from_bytes(hashlib.sha256(custom_id.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    return SamplingParams(
        temperature=body.take("temperature", NUMBER, 1.0),
        top_p=body.take("top_p", NUMBER, 1.0),
        # vLLM's -1 means all.
        top_k=max(body.take("top_k", whole(-1, 2**31 - 1), 0), 0),
        min_p=body.take("min_p", NUMBER, 0.0),
        seed=seed,
        stop=[*([stop] if isinstance(stop, str) else stop), *body.take("stop_token_ids", TOKEN_IDS, [])],
        ignore_eos=body.take("ignore_eos", BOOLEAN, False),
        # Penalties, bans and text options of vLLM, checked by `SamplingParams`.
        repetition_penalty=body.take("repetition_penalty", NUMBER, 1.0),
        presence_penalty=body.take("presence_penalty", NUMBER, 0.0),
        frequency_penalty=body.take("frequency_penalty", NUMBER, 0.0),
        logit_bias=body.take("logit_bias", OBJECT),
        min_tokens=body.take("min_tokens", whole(0, 2**31 - 1), 0),
        bad_words=body.take("bad_words", LIST, []),
        allowed_token_ids=body.take("allowed_token_ids", TOKEN_IDS),
        skip_special_tokens=body.take("skip_special_tokens", BOOLEAN, True),
        keep_tool_markers=body.take("keep_tool_markers", BOOLEAN, False),
        thinking_budget=body.take("thinking_token_budget", whole(1, 2**31 - 1)),
        think_end=body.take("think_end", STRING),
        structured_outputs=_take_structured_outputs(body),
    )


def _take_tools(body: Fields) -> list[Any]:
    """Return the tools for the template; none if `tool_choice` forbids calls."""
    tools = body.take("tools", LIST, [])
    parallel = body.take("parallel_tool_calls", BOOLEAN, True)
    choice = body.take("tool_choice", ANYTHING, "auto")
    if choice not in ("auto", "none"):
        body.fault(f"tool_choice: expected auto or none, got {shown(choice)} (a call cannot be forced)")
    if tools and not parallel and choice == "auto":
        body.fault("parallel_tool_calls: is supported only with the value true")
    for fault in faults_of_tools(tools):
        body.fault(fault)
    return [] if choice == "none" else tools


def _take_structured_outputs(body: Fields) -> Any:
    forms = []
    for name, key in GUIDED.items():
        value = body.take(name, ANYTHING)
        if value is not None:
            forms.append((name, {key: value}))
    outputs = body.take("structured_outputs", OBJECT)
    if outputs is not None:
        forms.append(("structured_outputs", {key: value for key, value in outputs.items() if value is not None}))
    form = body.take("response_format", OBJECT, {"type": "text"})
    form = {key: value for key, value in form.items() if value is not None}
    schema = form.get("json_schema")
    if form == {"type": "json_object"}:
        forms.append(("response_format", {"json_object": True}))
    elif form == {"type": "json_schema", "json_schema": schema} and _is_named_schema(schema):
        forms.append(("response_format", {"json": form["json_schema"]["schema"]}))
    elif form != {"type": "text"}:
        kinds = '{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {"schema": {...}}}'
        body.fault(f"response_format: expected {kinds}, got {shown(form)}")
    if len(forms) > 1:
        body.fault(f"{' and '.join(name for name, _ in forms)}: give one of them")
    return forms[0][1] if forms else None


def _is_named_schema(value: Any) -> bool:
    """Whether a value is a schema with OpenAI's labels only."""
    labels = {"name", "description", "strict", "schema"}
    return isinstance(value, dict) and isinstance(value.get("schema"), dict) and value.keys() <= labels


def _take_chat_fields(body: Fields) -> tuple[dict[str, Any], str | None]:
    """Take chat template fields; return arguments of `Tokenizer.encode_chat` and the effort."""
    variables, effort = body.take("chat_template_kwargs", OBJECT, {}), body.take("reasoning_effort", EFFORT)
    kinds = {
        "documents": LIST, "chat_template": STRING, "add_generation_prompt": BOOLEAN, "continue_final_message": BOOLEAN,
    }  # fmt: skip
    fields = {name: body.take(name, kind) for name, kind in kinds.items()}
    fields = {name: value for name, value in fields.items() if value is not None}
    if fields.get("continue_final_message") is False:
        del fields["continue_final_message"]
    try:
        joined_variables(fields | ({} if effort is None else {"reasoning_effort": effort}), variables)
    except ValueError as error:
        body.fault(str(error))
    return {**variables, **fields}, effort
