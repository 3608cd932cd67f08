"""The seam where steps run: implementations answer for their differences."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import hybridlm
from hybridlm.programs.many_processes import ManyProcesses
from hybridlm.programs.runner import Runner
from hybridlm.programs.sanitized import Sanitizer
from hybridlm.programs.shapes import EditShape

MAKERS = {"hybridlm/loading.py", "hybridlm/engine/engine.py"}
"""Files outside of `programs` that choose an implementation."""


def test_nothing_asks_which_implementation_runs_its_steps(root: Path) -> None:
    names = re.compile(r"\b(Runner\(|ManyProcesses\b|Sanitizer\b)")
    files = [path.relative_to(root).as_posix() for path in (root / "hybridlm").rglob("*.py")]
    naming = {file for file in files if names.search((root / file).read_text())}
    assert {file for file in naming if not file.startswith("hybridlm/programs/")} == MAKERS
    assert not [file for file in naming if re.search(r"isinstance\([^)]*runner", (root / file).read_text())]


def of(kind: type[Runner], lm: hybridlm.LM, leads: bool = True) -> Runner:
    if kind is ManyProcesses:
        group: Any = SimpleNamespace(decisions=SimpleNamespace(leads=leads))
        return ManyProcesses(lm.engine.programs, lm.engine.placement, group)
    return kind(lm.engine.programs, lm.engine.placement)


@pytest.mark.parametrize(
    ("kind", "leads", "repeats"),
    [(Runner, True, False), (Sanitizer, True, False), (ManyProcesses, True, False), (ManyProcesses, False, True)],
)
def test_other_processes_than_the_first_repeat_its_commands(
    text_lm: hybridlm.LM, kind: type[Runner], leads: bool, repeats: bool
) -> None:
    runner, groups = of(kind, text_lm, leads), list[Any]()
    assert runner.run_worker(groups.append) is repeats
    assert groups == ([runner.group] if isinstance(runner, ManyProcesses) and repeats else [])


def test_sanitized_steps_are_as_traced_not_timed_and_change_no_states(text_lm: hybridlm.LM) -> None:
    plain, sanitized = of(Runner, text_lm), of(Sanitizer, text_lm)
    assert plain.certified and not sanitized.certified
    assert (plain.checks_rows, sanitized.checks_rows) == (False, True)
    plain.require_edits("here")
    with pytest.raises(ValueError, match="^here expect a model without sanitize"):
        sanitized.require_edits("here")
    pool = cast(Any, None)
    with pytest.raises(ValueError, match="without sanitize"):
        sanitized.edit(EditShape(2, 2), text_lm.engine.example_arguments, pool, ())


def test_time_of_a_step_is_measured_once_it_is_compiled(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[Any] = []
    monkeypatch.setattr(text_lm.engine.programs, "compiled", lambda shape, *_: shapes.append(shape))
    examples = text_lm.engine.example_arguments
    assert not of(Sanitizer, text_lm).start_timing(EditShape(2, 2), examples) and shapes == []
    assert of(Runner, text_lm).start_timing(EditShape(2, 2), examples) and shapes == [EditShape(2, 2)]
