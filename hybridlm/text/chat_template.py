"""Chat templates: jinja2 in its immutable sandbox, with the functions that Hugging Face templates use.

Templates come with checkpoints and are untrusted code. The sandbox keeps them from Python's internals and from changing
their input; it does not limit their time or memory.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils


class ChatTemplateError(ValueError):
    """A chat template that is missing, unusable, or refuses the messages."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's text; it renders its body unchanged."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """`namespace()` that refuses underscore names, which jinja2's own passes to Python."""

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"attribute {name!r} of a namespace is unsafe")
        super().__setitem__(name, value)


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """jinja2's sandbox, which raises when it refuses an access instead of rendering nothing."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        raise jinja2.exceptions.SecurityError(f"access to {attribute!r} of a {type(obj).__name__} is unsafe")


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str) -> None:
        """Compile a template; raise ChatTemplateError for a syntax error or a template that does not use `messages`."""
        sandbox = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols])
        sandbox.filters["tojson"] = _to_json
        sandbox.globals.update(
            raise_exception=_raise_exception, strftime_now=_strftime_now, namespace=_namespace, dict=_dict
        )
        try:
            names = jinja2.meta.find_undeclared_variables(sandbox.parse(source))
            self._template = sandbox.from_string(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"chat template: {error}") from error
        except RecursionError as error:
            raise ChatTemplateError("chat template: nested too deeply") from error
        if "messages" not in names:
            raise ChatTemplateError("chat template: expected it to use `messages`, found no use of them")

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """Return the text of a conversation.

        Args:
            messages: {"role": ..., "content": ...} in order; keys whose value is None are left out, as in transformers.
            variables: other variables of the template; JSON values.

        Raises:
            ChatTemplateError: no messages, a message without a role, or an error in the template, also from its
                `raise_exception` or from the sandbox.
            TypeError: a message or value that is not plain data.
        """
        if isinstance(messages, str | Mapping):
            raise TypeError(f"messages: expected a list of messages, got {type(messages).__name__}")
        if not messages:
            raise ChatTemplateError("messages: expected at least one message, got none")
        plain = [_message(index, message) for index, message in enumerate(messages)]
        variables = {name: _plain(value, name) for name, value in variables.items()}
        try:
            return self._template.render(messages=plain, **variables)
        except Exception as error:
            # The template is a program and can raise anything.
            raise ChatTemplateError(f"chat template: {error or type(error).__name__}") from error


def _message(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TypeError(f"messages[{index}]: expected a dict with role and content, got {type(message).__name__}")
    if not isinstance(message.get("role"), str):
        raise ChatTemplateError(f"messages[{index}]: expected a role, found the keys {sorted(map(str, message))}")
    return {key: _plain(value, f"messages[{index}].{key}") for key, value in message.items() if value is not None}


def _plain(value: Any, where: str) -> Any:
    """Return a copy made of JSON types, so that the template cannot call methods of other objects."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise TypeError(f"{where}: expected str, number, bool, None, list or dict, got {type(value).__name__}")


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # jinja2's own filter escapes HTML, which is not in the models' training data.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _namespace(*args: Any, **kwargs: Any) -> _Namespace:
    for name in dict(*args, **kwargs):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"attribute {name!r} of a namespace is unsafe")
    return _Namespace(*args, **kwargs)


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)
