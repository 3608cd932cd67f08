"""Groups of options: dataclasses with a field for each option of a command.

A command takes a group as one argument. A field is annotated for typer, has arguments of `typer.Option` as metadata, or
is a setting of `SamplingParams`.
"""

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from inspect import Parameter
from typing import Annotated, Any, get_origin, get_type_hints

import typer

from hybridlm.requests.sampling_params import SamplingParams

PLAIN = (bool, int, int | None, float, str)
"""Types of options with metadata; other types are read from text."""


def setting(name: str, *flags: str, note: str = "") -> Any:
    """Return the option of a sampling setting, described by the docstring of `SamplingParams`."""
    docstring = inspect.getdoc(SamplingParams) or ""  # None under python -OO
    entry = re.search(rf"^ +{name}: (.*?)(?=^ +\w+: |\Z)", docstring, re.DOTALL | re.MULTILINE)
    text = " ".join(entry[1].split()) if entry else ""
    return typer.Option(*flags, help=f"{text[:1].upper()}{text[1:]} {note}".strip())


def options_of(group: type[Any]) -> list[Field[Any]]:
    return [field for field in fields(group) if field.metadata] or list(fields(group))


def parameters_of(group: type[Any], **defaults: Any) -> Iterator[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in options_of(group):
        value = field.default if field.default_factory is MISSING else field.default_factory()
        # An empty list is an option without a value.
        value = Parameter.empty if value is MISSING else None if value == () else value
        default = defaults.get(field.name, value)
        annotation = _annotation(field, hints[field.name])
        yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _annotation(field: Field[Any], hint: Any) -> Any:
    if get_origin(hint) is Annotated:
        return hint
    if field.metadata:
        arguments = {name: value for name, value in field.metadata.items() if name != "read"}
        flags = arguments.pop("flags", [f"--{field.name.replace('_', '-')}"] * (hint is bool))
        return Annotated[hint if hint in PLAIN else str | None, typer.Option(*flags, **arguments)]
    return Annotated[hint, setting(field.name, *[f"--{field.name.replace('_', '-')}"] * (hint is bool))]


def expanded(parameters: Iterable[Parameter]) -> Iterator[Parameter]:
    """Yield the parameters of a command; each group is replaced by its fields."""
    for parameter in parameters:
        if is_dataclass(parameter.annotation):
            yield from parameters_of(parameter.annotation)  # type: ignore[arg-type]  # a class, as an annotation
        else:
            yield parameter.replace(kind=Parameter.KEYWORD_ONLY)


def gathered(parameters: Iterable[Parameter], values: dict[str, Any]) -> dict[str, Any]:
    """Return a command's arguments; build each group from its options."""
    groups: dict[str, Any] = {each.name: each.annotation for each in parameters if is_dataclass(each.annotation)}
    return values | {name: _built(group, values) for name, group in groups.items()}


def _built(group: type[Any], values: dict[str, Any]) -> Any:
    """Return a group: None selects a field's default, `read` parses a text."""
    options = {field.name: (values.pop(field.name), field.metadata.get("read")) for field in options_of(group)}
    texts = {name: (value, read) for name, (value, read) in options.items() if value is not None}
    return group(**{name: value if read is None else read(value) for name, (value, read) in texts.items()})
