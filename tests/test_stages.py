"""Every test runs in a stage of `.ci/run` or `.ci/long`; planted faults fit."""

import itertools
import re
import runpy
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

MARKS = ("browser", "long", "notebooks", "oracle", "slow", "target_cuda", "target_tpu")


def lines_of(root: Path, *scripts: str) -> list[str]:
    """Return the lines of these scripts of .ci, continued lines joined."""
    return "\n".join((root / ".ci" / name).read_text().replace("\\\n", " ") for name in scripts).splitlines()


def default_marks(config: pytest.Config) -> str:
    """Return the marks that pyproject.toml chooses."""
    return next(option for option in config.getini("addopts") if option.startswith("-m=")).removeprefix("-m=")


def whole_tree(root: Path, config: pytest.Config) -> list[str]:
    """Return the mark expressions of the stages that choose from all files.

    Files that a stage ignores have another stage, as another test checks.
    """
    expressions = []
    for line in lines_of(root, "run", "long"):
        if "pytest" not in line or line.lstrip().startswith("#"):
            continue
        marks = re.search(r' -m (?:"([^"]+)"|(\w+))', line)
        files = re.sub(r'-m (?:"[^"]+"|\w+)|"\$\{\w+\[@\]/#/--ignore=\}"|--ignore=\S+|"\$\{marked\[@\]\}"', "", line)
        if re.search(r"tests/|\[@\]", files):
            continue
        if marks is not None:
            expressions.append(marks[1] or marks[2])
        elif re.search(r"--rest .*\btests$", line):
            expressions.append(default_marks(config))
    return expressions


def chosen(marks: tuple[str, ...], stages: list[Expression]) -> bool:
    """Return True if a stage takes the tests with exactly these marks."""
    return any(stage.evaluate(lambda name, **_: name in marks) for stage in stages)


def test_tests_of_all_marks_run_in_a_stage(root: Path, pytestconfig: pytest.Config) -> None:
    stages = [Expression.compile(expression) for expression in whole_tree(root, pytestconfig)]
    assert len(stages) >= 6
    missing = [
        marks
        for count in range(len(MARKS) + 1)
        for marks in itertools.combinations(MARKS, count)
        if not chosen(marks, stages)
    ]
    # `.ci/long pages` takes notebooks from their file.
    assert [marks for marks in missing if "notebooks" not in marks] == []


def test_files_that_a_stage_leaves_out_have_a_stage(root: Path) -> None:
    text = "\n".join(lines_of(root, "run", "long"))
    for group in set(re.findall(r'"\$\{(\w+)\[@\]/#/--ignore=\}"', text)):
        assert re.search(rf'"\$\{{{group}\[@\]\}}"', text), group
    for path in set(re.findall(r"--ignore=(tests/\S+)", text)):
        assert re.search(rf"-m long {path}$", text, re.MULTILINE), path


def expanded(word: str) -> list[str]:
    """Return the words of a shell word with braces."""
    head, brace, rest = word.partition("{")
    if not brace:
        return [word]
    choices, _, tail = rest.partition("}")
    return [head + choice + end for choice in choices.split(",") for end in expanded(tail)]


def test_files_that_a_stage_names_exist(root: Path) -> None:
    words = " ".join(line for line in lines_of(root, "environment", "run", "long") if not line.lstrip().startswith("#"))
    named = re.findall(r"(?:tests/)?(?:hybridlm|ir_passes|models)/[\w/{},]+(?:\.py)?", words)
    paths = {path.removeprefix("tests/") for word in named for path in expanded(word)}
    assert len(paths) >= 90
    assert sorted(path for path in paths if not (root / "tests" / path).exists() and not (root / path).exists()) == []


def test_planted_faults_fit_the_sources(root: Path) -> None:
    faults = runpy.run_path(str(root / "scripts" / "plant_faults.py"))["read_faults"]()
    assert len(faults) >= 30
    for fault in faults:
        source = (root / fault.file).read_text()
        compile(fault.planted(source), fault.file, "exec")
        for test in fault.tests:
            file, _, name = test.partition("::")
            assert not name or f"def {name}(" in (root / file).read_text(), test
            assert (root / file).is_file(), test
