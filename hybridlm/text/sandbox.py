"""jinja2's immutable sandbox: stricter about names, with Hugging Face's functions."""

import json
from collections.abc import Callable, Set
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
from jinja2 import TemplateError

__all__ = ["TemplateError", "compile_template", "literal_text"]


def compile_template(source: str) -> tuple[jinja2.Template, Set[str]]:
    """Return a template and its names; raises TemplateError, or RecursionError if nested too deeply."""
    sandbox = _sandbox()
    names = jinja2.meta.find_undeclared_variables(sandbox.parse(source))
    return sandbox.from_string(source), names


def literal_text(source: str) -> str:
    """Return the texts in a template, separated by NUL; raises as `compile_template`."""
    tree = _sandbox().parse(source)
    texts = {node.data for node in tree.find_all(jinja2.nodes.TemplateData)}
    texts |= {node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)}
    return "\0".join(sorted(texts))


def _sandbox() -> "_Sandbox":
    sandbox = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols])
    sandbox.filters["tojson"] = _to_json
    sandbox.globals.update(
        raise_exception=_raise_exception,
        strftime_now=lambda pattern: datetime.now().strftime(pattern),
        namespace=_namespace,
        dict=_Dict(),
    )
    return sandbox


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's text; variables set inside stay inside."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller: Callable[[], str]) -> str:
        return caller()


class _Namespace(jinja2.utils.Namespace):
    """`namespace()` without underscore names: jinja2 would pass them to Python."""

    def __setitem__(self, name: str, value: Any) -> None:
        _require_safe(name)
        super().__setitem__(name, value)


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """jinja2's sandbox; a refused access raises instead of rendering as nothing."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        raise jinja2.exceptions.SecurityError(f"access to {attribute!r} of a {type(obj).__name__} is unsafe")


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # jinja2's filter escapes HTML, unlike the models' training data.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _require_safe(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"attribute {name!r} of a namespace is unsafe")


def _namespace(*args: Any, **kwargs: Any) -> _Namespace:
    for name in dict(*args, **kwargs):
        _require_safe(name)
    return _Namespace(*args, **kwargs)


class _Dict:
    """`dict` for templates, without the rest of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)
