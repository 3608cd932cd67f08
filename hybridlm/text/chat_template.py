"""Chat templates: jinja2's immutable sandbox with Hugging Face's functions.

Templates are untrusted code: the sandbox protects Python's internals and their input; it does not limit time or memory.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any


class ChatTemplateError(ValueError):
    """A missing or unusable chat template, or one that refuses the messages."""


REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of reasoning, in transformers' order of precedence."""
CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "
"""Mark after the continued message, as in transformers."""
MEDIA = frozenset({"image", "image_url", "video", "video_url", "audio", "audio_url"})


def faults_of_tools(tools: Sequence[Any]) -> list[str]:
    expected = 'expected {"type": "function", "function": {...}}'
    return [
        f"tools[{index}]: {expected}, got {tool!r:.200}"
        for index, tool in enumerate(tools)
        if not isinstance(tool, Mapping)
        or tool.get("type") != "function"
        or not isinstance(tool.get("function"), Mapping)
    ]


def joined_variables(arguments: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Join arguments and chat_template_kwargs; raises ValueError for two values."""
    faults = [
        f"{name}: is {value!r:.80}, and {variables[name]!r:.80} in chat_template_kwargs; give one of them"
        for name, value in arguments.items()
        if variables.get(name, value) != value
    ]
    faults += ["messages: expected none in chat_template_kwargs"] * ("messages" in variables)
    if faults:
        raise ValueError("; ".join(faults))
    return {**arguments, **variables}


class CompiledTemplate:
    """A compiled template; wrong syntax raises ChatTemplateError.

    Attributes:
        variables: its free names.
    """

    def __init__(self, source: str, where: str) -> None:
        from hybridlm.text.sandbox import TemplateError, compile_template  # jinja2 takes a while to import

        try:
            self._template, names = compile_template(source)
        except TemplateError as error:
            raise ChatTemplateError(f"{where}: {error}") from error
        except RecursionError as error:
            raise ChatTemplateError(f"{where}: nested too deeply") from error
        self._source, self._where, self.variables = source, where, frozenset(names)

    def text(self, variables: Mapping[str, Any]) -> str:
        try:
            return self._template.render(**variables)
        except Exception as error:
            # Templates are programs and can raise anything.
            raise ChatTemplateError(f"{self._where}: {error or type(error).__name__}") from error


class ChatTemplate(CompiledTemplate):
    """A compiled chat template; a source without `messages` raises ChatTemplateError."""

    def __init__(self, source: str) -> None:
        super().__init__(source, "chat template")
        if "messages" not in self.variables:
            raise ChatTemplateError("chat template: expected it to use `messages`, found no use of them")

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, continue_final_message: bool | str = False, **variables: Any
    ) -> str:
        """Return the text of a conversation.

        Args:
            messages: {"role": ..., "content": ...}; as in transformers, None values are removed and reasoning has each
                of its names.
            continue_final_message: end within the last message, in its content or this field.

        Raises:
            ChatTemplateError: no messages, a message without a role, a user's or system message without content, parts
                that are not text, a last message that cannot be continued, or an error of template or sandbox.
        """
        if isinstance(messages, str | Mapping):
            raise TypeError(f"messages: expected a list of messages, got {type(messages).__name__}")
        if not messages:
            raise ChatTemplateError("messages: expected at least one message, got none")
        plain = [_with_reasoning(_message(index, message)) for index, message in enumerate(messages)]
        variables = {name: plain_data(value, name) for name, value in variables.items()}
        plain = self._with_known_content(plain, variables)
        plain = self._with_known_arguments(plain, variables)
        if not continue_final_message:
            return self._text(plain, variables)
        field = continue_final_message if isinstance(continue_final_message, str) else "content"
        return self._continued(plain, field, variables)

    def _text(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        return self.text({"messages": messages, **variables})

    def _with_known_content(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Join lists of text parts by line ends for templates without lists, as in vLLM."""
        listed = [message["content"] for message in messages if isinstance(message.get("content"), list)]
        if not listed or not all(_is_text_part(part) for content in listed for part in content):
            return messages
        joined = [
            message | {"content": "\n".join(part["text"] for part in message["content"])}
            if isinstance(message.get("content"), list)
            else message
            for message in messages
        ]
        try:
            text = self._text(messages, variables)
        except ChatTemplateError:
            return joined
        return joined if any(content and str(content) in text for content in listed) else messages

    def _with_known_arguments(
        self, messages: list[dict[str, Any]], variables: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Return tool-call arguments as objects if the template rejects or drops strings."""
        places = [
            (i, j, function)
            for i, message in enumerate(messages)
            for j, function in enumerate(_functions(message))
            if isinstance(function.get("arguments"), str)
        ]
        if not places:
            return messages
        names = {id(function): f"ARGUMENTS-{number}-OF-CALL" for number, (_, _, function) in enumerate(places)}
        try:
            text = self._text(_with_arguments(messages, names), variables)
        except ChatTemplateError:
            text = ""
        if all(name in text for name in names.values()):
            return messages
        return _with_arguments(messages, {id(function): _arguments(i, j, function) for i, j, function in places})

    def _continued(self, messages: list[dict[str, Any]], field: str, variables: Mapping[str, Any]) -> str:
        content = messages[-1].get(field)
        fields = [name for name in REASONING if messages[-1].get(name) == content] if field in REASONING else [field]
        if content is None:
            raise ChatTemplateError(f"continue_final_message: the last message has no {field!r} to continue")
        if not any(name in self._source for name in fields):
            raise ChatTemplateError(f"continue_final_message: the chat template does not use {field!r}")
        if isinstance(content, list):
            texts = [
                i for i, part in enumerate(content) if isinstance(part, dict) and isinstance(part.get("text"), str)
            ]
            if not texts:
                raise ChatTemplateError(f"continue_final_message: {field!r} of the last message has no text part")
            parts = list(content)
            parts[texts[-1]] = parts[texts[-1]] | {"text": content[texts[-1]]["text"] + CONTINUED}
            marked, content = messages[-1] | {field: parts}, content[texts[-1]]["text"]
        elif isinstance(content, str):
            marked = messages[-1] | {name: content + CONTINUED for name in fields}
        else:
            raise ChatTemplateError(f"continue_final_message: {field!r} of the last message is not text")
        text = self._text([*messages[:-1], marked], variables)
        place = text.rfind(CONTINUED.strip())
        if place < 0 or content.strip() not in text:
            raise ChatTemplateError(
                "continue_final_message: the chat template leaves the last message out or changes it"
            )
        # A template that trims the message also trims the mark's space.
        return text[:place] if text.startswith(CONTINUED, place) else text[:place].rstrip()


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    reasoning = next((message[name] for name in REASONING if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _functions(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    functions = (
        [call.get("function", call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    )
    return [function for function in functions if isinstance(function, dict)]


def _with_arguments(messages: list[dict[str, Any]], arguments: Mapping[int, Any]) -> list[dict[str, Any]]:
    def changed(call: Any) -> Any:
        if id(call) in arguments:
            return call | {"arguments": arguments[id(call)]}
        if isinstance(call, dict) and id(call.get("function")) in arguments:
            return call | {"function": call["function"] | {"arguments": arguments[id(call["function"])]}}
        return call

    return [
        message | {"tool_calls": [changed(call) for call in message["tool_calls"]]} if _functions(message) else message
        for message in messages
    ]


def _arguments(index: int, call: int, function: Mapping[str, Any]) -> dict[str, Any]:
    where = f"messages[{index}].tool_calls[{call}].function.arguments"
    try:
        value = json.loads(function["arguments"] or "{}")
    except ValueError as error:
        raise ChatTemplateError(
            f"{where}: expected an object or its JSON text, got {function['arguments']!r}"
        ) from error
    if not isinstance(value, dict):
        raise ChatTemplateError(f"{where}: expected an object or its JSON text, got {function['arguments']!r}")
    return value


def _message(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TypeError(f"messages[{index}]: expected a dict with role and content, got {type(message).__name__}")
    if not isinstance(message.get("role"), str):
        raise ChatTemplateError(f"messages[{index}]: expected a role, found the keys {sorted(map(str, message))}")
    content = message.get("content")
    if content is None and message["role"] in ("system", "user"):
        # Templates write nothing for it, also where the key is misspelt.
        raise ChatTemplateError(f"messages[{index}]: expected content, found the keys {sorted(map(str, message))}")
    parts: Any = content if isinstance(content, list | tuple) else ()
    for place, part in enumerate(parts):
        if isinstance(part, Mapping) and (str(part.get("type")).removeprefix("input_") in MEDIA or MEDIA & {*part}):
            raise ChatTemplateError(
                f"messages[{index}].content[{place}]: expected text, the only input of these models, got {sorted(part)}"
            )
    return {key: plain_data(value, f"messages[{index}].{key}") for key, value in message.items() if value is not None}


def plain_data(value: Any, where: str) -> Any:
    """Copy a value as JSON types, without methods for templates to misuse."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain_data(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise TypeError(f"{where}: expected str, number, bool, None, list or dict, got {type(value).__name__}")
