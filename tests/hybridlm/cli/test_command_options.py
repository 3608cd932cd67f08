"""Options of commands: fields of dataclasses, with their defaults and help."""

import inspect
from dataclasses import MISSING, fields
from typing import Any, get_args

import pytest
from typer.main import get_command
from typer.models import CommandInfo

import hybridlm
from hybridlm import EngineConfig
from hybridlm.cli.groups import options_of
from hybridlm.cli.main import app
from hybridlm.cli.options import LOADING

OTHER_DEFAULTS = {("verify", "lanes"): None, ("batch", "prefix_cache"): "512MB"}
"""Defaults of commands, where they differ from the fields' defaults."""


OTHER_OPTIONS = {("bench", "lanes"), ("bench", "context"), ("launch", "context")}
"""Options of commands, or typer's context, that have the name of a field and another meaning."""


@pytest.mark.parametrize("command", app.registered_commands, ids=lambda command: command.callback.__name__)
def test_options_of_a_command_are_fields_with_their_defaults_and_help(command: CommandInfo) -> None:
    assert command.callback is not None
    name, options = command.callback.__name__, {option.name: option for option in fields(EngineConfig)}
    for parameter in inspect.signature(command.callback).parameters.values():
        if parameter.name in options and (name, parameter.name) not in OTHER_OPTIONS:
            option = options[parameter.name]
            _, listed = get_args(parameter.annotation)
            assert {key: getattr(listed, key) for key in option.metadata} == option.metadata
            assert parameter.default == OTHER_DEFAULTS.get((name, parameter.name), option.default)


def test_commands_have_every_option_with_help() -> None:
    signatures = [inspect.signature(command.callback or print) for command in app.registered_commands]
    parameters = {name for signature in signatures for name in signature.parameters}
    assert set(LOADING) <= parameters and "adapter" in LOADING
    assert {option.name for option in fields(EngineConfig)} - set(LOADING) == {
        "certify", "compilation_cache", "progress", "sanitize", "dequantise",
    }  # fmt: skip


TASKS: dict[str, Any] = {
    "score": hybridlm.ScoreTask, "embed": hybridlm.EmbedTask, "classify": hybridlm.ClassifyTask,
    "divergence": hybridlm.DivergenceTask, "decide": hybridlm.DecideTask, "batch": hybridlm.BatchTask,
}  # fmt: skip


@pytest.mark.parametrize("name", TASKS)
def test_commands_have_the_fields_as_options(name: str) -> None:
    command: Any = get_command(app)
    options = {array.name: array for array in command.commands[name].params}
    for field in [*options_of(TASKS[name]), *options_of(hybridlm.FileOptions)] if fields(TASKS[name]) else []:
        assert options[field.name].help == field.metadata["help"]
        expected = None if field.default in (MISSING, ()) else field.default
        assert options[field.name].default == expected
