"""Methods take the fields of their task and `FileOptions`; commands take the options."""

import inspect
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

import pytest

import hybridlm
from hybridlm import LM
from hybridlm.score_files.options import FileSettings

TASKS: dict[str, Any] = {
    "score": hybridlm.ScoreTask, "embed": hybridlm.EmbedTask, "classify": hybridlm.ClassifyTask,
    "divergence": hybridlm.DivergenceTask, "decide": hybridlm.DecideTask, "batch": hybridlm.BatchTask,
}  # fmt: skip


def defaults(cls: Any) -> dict[str, Any]:
    return {field.name: inspect.Parameter.empty if field.default is MISSING else field.default for field in fields(cls)}


def arguments(method: Any) -> dict[str, Any]:
    parameters = inspect.signature(method).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD}


@pytest.mark.parametrize("name", TASKS)
def test_methods_have_the_fields_of_their_task(name: str) -> None:
    method, task = getattr(LM, f"{name}_file"), TASKS[name]
    local = {key: default for key, default in arguments(method).items() if key not in ("self", "input", "output")}
    assert local == defaults(task)
    hints, types = get_type_hints(method), get_type_hints(task)
    assert all(hints[key] == types[key] for key in local if key != "other"), "an LM in both, by its attribute"
    assert hints["options"] == get_type_hints(LM.run_file)["options"]


def test_keywords_of_files_are_the_options() -> None:
    assert get_type_hints(FileSettings) == get_type_hints(hybridlm.FileOptions)


@pytest.mark.parametrize("method", [LM.generate, LM.stream, LM.chat, LM.score])
def test_methods_have_the_settings_of_probes(method: Any) -> None:
    result = arguments(method)
    groups = [hybridlm.ProbeSettings, *([hybridlm.DistributionSettings] if method is LM.score else [])]
    assert all(
        result[name] == default for group in groups for name, default in defaults(group).items() if name != "states"
    )
    assert result["states"] is False


@pytest.mark.parametrize("options", [{"windows": 3}, {"shrad": "0/2"}])
def test_unknown_options_of_a_task_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="did you mean"):
        hybridlm.FileOptions(**options)
    with pytest.raises(TypeError, match="did you mean"):
        LM.run_file(None, hybridlm.EmbedTask(), "in.jsonl", "out.jsonl", **options)  # type: ignore[arg-type]
