"""The shape of the repository: who imports whom, how long a file may be, where packages may be."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = {"hybridlm", "models", "ir_passes"}
# Folder -> the ones of our packages that its files may import.
ALLOWED = {
    "hybridlm": OURS,
    "models": {"models"},
    "ir_passes": {"ir_passes"},
    "notebooks": {"hybridlm"},
    "scripts": {"hybridlm"},
}
LONGEST = 300


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and top-level name of every import in a file, inside functions and TYPE_CHECKING blocks too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            if ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__"):
                yield node.lineno, str(node.args[0].value).partition(".")[0]


def forbidden(folder: str, where: str, source: str) -> list[str]:
    return [
        f"{where}:{line}: {folder} must not import {name} (allowed: {', '.join(sorted(ALLOWED[folder]))})"
        for line, name in imported(ast.parse(source))
        if name in OURS - ALLOWED[folder]
    ]


def notebook_code(path: Path) -> str:
    import json

    cells = json.loads(path.read_text())["cells"]
    lines = "".join("".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "code").splitlines()
    return "\n".join("pass" if line.lstrip().startswith(("%", "!")) else line for line in lines)


@pytest.mark.parametrize("folder", ALLOWED)
def test_direction(folder: str):
    faults = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        faults += forbidden(folder, str(path.relative_to(ROOT)), path.read_text())
    for path in sorted((ROOT / folder).rglob("*.ipynb")):
        faults += forbidden(folder, str(path.relative_to(ROOT)), notebook_code(path))
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("folder", "source"),
    [
        ("models", "import hybridlm"),
        ("models", "from ir_passes.contract import Lane"),
        ("ir_passes", "def f():\n    import models.rope"),
        ("ir_passes", "import importlib\nimportlib.import_module('hybridlm')"),
        ("scripts", "from models import family_of"),
    ],
)
def test_direction_sees(folder: str, source: str):
    assert len(forbidden(folder, "example.py", source)) == 1


PRIVATE = re.compile(r"\bjax\._src\b|\bjaxlib\._|[\"']_executable\b|\b_kept_var_idx\b")
INTERNAL = re.compile(r"\bjax\.(extend|interpreters|core)\b|from jax import (extend|interpreters|core)\b")
ADAPTERS = {
    "hybridlm models ir_passes scripts": (("ir_passes/jax_private.py",), ("ir_passes/ir.py",)),
    "tests": (
        ("tests/reference/hlo_text.py", "tests/reference/installed_primitives.py"),
        ("tests/reference/installed_primitives.py",),
    ),
}
"""Folders -> the files in them that may use what JAX keeps private, and those that may use its intermediate form."""


@pytest.mark.parametrize("folders", ADAPTERS)
def test_what_jax_keeps_to_itself_is_used_in_one_place(folders: str):
    for pattern, allowed in zip((PRIVATE, INTERNAL), ADAPTERS[folders], strict=True):
        files = [path for folder in folders.split() for path in (ROOT / folder).rglob("*.py")]
        used = {str(path.relative_to(ROOT)) for path in files if pattern.search(path.read_text())}
        assert used == set(allowed), f"outside of its adapter: {sorted(used - set(allowed))}"


def test_no_file_is_too_long():
    lengths = {
        path: len(path.read_text().splitlines()) for name in sorted(OURS) for path in (ROOT / name).rglob("*.py")
    }
    assert lengths, "no files found"
    long = [f"{path.relative_to(ROOT)}: {lines} lines" for path, lines in lengths.items() if lines > LONGEST]
    assert not long, f"at most {LONGEST} lines, one concept per file:\n" + "\n".join(long)


def test_tests_are_no_packages_and_their_names_are_unique():
    """Importlib mode needs no __init__.py, and with one `tests/models` would be importable as a package."""
    tests = ROOT / "tests"
    assert not [str(path) for path in tests.rglob("__init__.py")]
    names = [path.name for path in tests.rglob("test_*.py")]
    assert not sorted({name for name in names if names.count(name) > 1})
