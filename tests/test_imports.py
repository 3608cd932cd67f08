"""The repository's shape: imports, file lengths, and places of packages."""

import ast
import graphlib
import re
from collections import Counter
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
MOST_FILES = 20
READ = {".cc", ".h", ".md", ".py", ".svg"}


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and top-level name of every import, also nested ones."""
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


@pytest.mark.parametrize(("folder", "source"), [
    ("models", "import hybridlm"),
    ("models", "from ir_passes.contract.contract import Lane"),
    ("ir_passes", "def f():\n    import models.layers.rope"),
    ("ir_passes", "import importlib\nimportlib.import_module('hybridlm')"),
    ("scripts", "from models import family_of"),
])  # fmt: skip
def test_direction_sees(folder: str, source: str):
    assert len(forbidden(folder, "example.py", source)) == 1


PRIVATE = re.compile(r"\bjax\._src\b|\bjaxlib\._|[\"']_executable\b|\b_kept_var_idx\b")
INTERNAL = re.compile(r"\bjax\.(extend|interpreters|core)\b|from jax import (extend|interpreters|core)\b")
ADAPTERS = {
    "hybridlm models ir_passes scripts": (
        ("ir_passes/jaxpr/jax_private.py", "ir_passes/jaxpr/jax_private_refs.py"),
        ("ir_passes/jaxpr/ir.py", "ir_passes/jaxpr/sources.py"),
    ),
    "tests": (
        ("tests/reference/compiled/hlo_text.py", "tests/reference/proofs/installed_primitives.py"),
        ("tests/reference/proofs/installed_primitives.py",),
    ),
}
"""Folders -> the files in them that may use what JAX keeps private, and those that may use its intermediate form."""


@pytest.mark.parametrize("folders", ADAPTERS)
def test_what_jax_keeps_to_itself_is_used_in_one_place(folders: str):
    for pattern, allowed in zip((PRIVATE, INTERNAL), ADAPTERS[folders], strict=True):
        files = [path for folder in folders.split() for path in (ROOT / folder).rglob("*.py")]
        used = {str(path.relative_to(ROOT)) for path in files if pattern.search(path.read_text())}
        assert used == set(allowed), f"outside of its adapter: {sorted(used - set(allowed))}"


def test_no_folder_has_too_many_files():
    """Count a folder's own read files, without built or recorded ones."""
    counted = Counter(
        path.parent.relative_to(ROOT).as_posix()
        for name in (*sorted(OURS), "docs", "scripts", "tests")
        for path in (ROOT / name).rglob("*.*")
        if path.suffix in READ
    )
    full = {folder: files for folder, files in counted.items() if files > MOST_FILES}
    assert not full, f"more than {MOST_FILES} files; put those of one concept into a folder: {full}"


def test_nothing_asks_jax_for_its_platform():
    """Targets know theirs, also where steps are compiled for a machine that is not there."""
    files = [path for name in (*sorted(OURS), "scripts") for path in (ROOT / name).rglob("*.py")]
    asking = [str(path.relative_to(ROOT)) for path in files if "default_backend" in path.read_text()]
    assert files and not asking


def test_no_file_is_too_long():
    files = [path for name in sorted(OURS) for path in (ROOT / name).rglob("*.py")]
    assert files, "no files found"
    long = []
    for path in files:
        lines = len((text := path.read_text()).splitlines())
        if lines > LONGEST and "More than 300 lines: " not in (ast.get_docstring(ast.parse(text)) or ""):
            long.append(f"{path.relative_to(ROOT)}: {lines} lines")
    assert not long, (
        f"at most {LONGEST} lines, or 'More than 300 lines: <why>' in the module's docstring:\n" + "\n".join(long)
    )


def test_a_class_name_has_one_meaning():
    """No two classes of the packages have one name."""
    places: dict[str, list[str]] = {}
    for path in sorted(path for package in OURS for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_tests_are_no_packages_and_their_names_are_unique():
    """Importlib mode needs no __init__.py, and with one `tests/models` would be importable as a package."""
    tests = ROOT / "tests"
    assert not [str(path) for path in tests.rglob("__init__.py")]
    names = [path.name for path in tests.rglob("test_*.py")]
    assert not sorted({name for name in names if names.count(name) > 1})


LAYERS = {
    "hybridlm": """
        __main__
        cli
        bench demo evals pictures ray
        loading target_report
        lm
        forward openai_batch tables update weights worker
        decision_models score_files scoring session text_model
        engine
        multiprocess prefix_cache programs requests rows
        checkpoint devices files grammars steps text
        drafting gguf_files quantised sampling
        siblings compiler errors families keywords progress version
    """,
    "models": """
        families
        config weights
        decoder mixers
        layers
        ops
        cpu_kernels state
        sharding
    """,
    "ir_passes": """
        compile
        rewrites sanitizer
        host measure proof scratch xla_audit
        contract kernels
        jaxpr
        files targets
    """,
}
"""Package -> its folders and files, top first. Each may import from the lines below and, without a circle, its own."""

Edge = tuple[str, str, str]
"""A module, one that it imports, and the place of the import."""


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def edges(package: str) -> list[Edge]:
    """Imports between modules of a package, type-checking ones included."""
    files = {name_of(path): path for path in sorted((ROOT / package).rglob("*.py"))}
    results = []
    for name, path in files.items():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            rows: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                rows = sorted(full & files.keys()) or [node.module]
                rows += [node.module] if not full <= files.keys() and node.module not in rows else []
            elif isinstance(node, ast.Import):
                rows = [alias.name for alias in node.names]
            for other in rows:
                if other in files and other != name:
                    results.append((name, other, f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"))
    return results


def part_of(module: str) -> str:
    """The folder below the package that has a module, or "" for the package."""
    return module.split(".")[1] if "." in module else ""


def upward(package: str, edges: list[Edge]) -> list[str]:
    """Imports from a line of LAYERS above, and of modules that have no line."""
    lines = [line.split() for line in LAYERS[package].strip().splitlines()]
    level = {name: number for number, names in enumerate(reversed(lines)) for name in names} | {"": len(lines)}
    faults = []
    for module, other, where in edges:
        first, second = part_of(module), part_of(other)
        if missing := {first, second} - level.keys():
            faults.append(f"{where}: {', '.join(sorted(missing))} has no line in LAYERS")
        elif level[second] > level[first]:
            faults.append(f"{where}: {module} must not import {other}, which is above it")
    return faults


def within(folder: str, edges: list[Edge]) -> set[tuple[str, str]]:
    """Imports between a folder's files and subfolders."""
    start = f"{folder}."
    parts = {
        tuple(name.removeprefix(start).partition(".")[0] for name in (first, second))
        for first, second, _ in edges
        if first.startswith(start) and second.startswith(start)
    }
    return {(first, second) for first, second in parts if first != second}


def circle(pairs: set[tuple[str, str]]) -> list[str]:
    """One circle of imports in order, or empty."""
    graph: dict[str, set[str]] = {}
    for first, second in pairs:
        graph.setdefault(first, set()).add(second)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("package", LAYERS)
def test_imports_run_down(package: str):
    result = edges(package)
    assert len(result) > 50
    assert not (faults := upward(package, result)), "\n".join(faults)


@pytest.mark.parametrize("package", LAYERS)
def test_every_line_exists(package: str):
    present = {part_of(name_of(path)) for path in (ROOT / package).rglob("*.py")} - {""}
    assert sorted(LAYERS[package].split()) == sorted(present)


@pytest.mark.parametrize("package", LAYERS)
def test_no_circle_of_files_or_folders(package: str):
    result = edges(package)
    assert not circle({(first, second) for first, second, _ in result})
    for folder in sorted({name.rpartition(".")[0] for item in result for name in item[:2]}):
        assert not circle(within(folder, result)), f"in {folder or package}"


def test_upward_imports_and_circles_are_seen():
    assert upward("models", [("models.state.state", "models.families.qwen", "here")])
    assert upward("models", [("models.state.state", "models", "here")])
    assert upward("models", [("models.families.qwen", "models.elsewhere", "here")])
    assert not upward("models", [("models.families.qwen", "models.state.state", "here")])
    assert circle(within("a", [("a.b.c", "a.d", "here"), ("a.d", "a.b.e", "here")]))
    assert circle({("a", "b"), ("b", "c"), ("c", "a")}) and not circle({("a", "b"), ("a", "c"), ("b", "c")})


PUBLIC_MODULES = {
    "hybridlm.errors", "hybridlm.evals", "hybridlm.families", "hybridlm.pictures", "hybridlm.ray",
}  # fmt: skip
"""Modules that the docs name by their path; all other public names are those of a package's `__init__`."""
UNCHECKED = ("ir_passes", "models")
"""Folders of tests that are still to be changed."""


def offered(package: Path) -> set[str]:
    """Names that the `__init__` of a folder has, which hide modules of the same name."""
    names = set()
    for node in ast.walk(ast.parse((package / "__init__.py").read_text())):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def foreign(test: Path, tree: ast.AST) -> list[str]:
    """Imports of modules inside our packages from another folder than that of the test, or one around it.

    Args:
        test: path of the test below tests/.
    """
    home, faults = test.parent.parts, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            package = ROOT.joinpath(*node.module.split("."))
            inner = {alias.name for alias in node.names if (package / f"{alias.name}.py").exists()}
            inner -= offered(package) if inner else set()
            modules = [node.module, *(f"{node.module}.{name}" for name in sorted(inner))]
        else:
            continue
        for module in modules:
            *folder, name = module.split(".")
            is_module = ROOT.joinpath(*folder, f"{name}.py").exists()
            public = module in PUBLIC_MODULES or folder == ["hybridlm", "compiler"]
            if folder and folder[0] in OURS and is_module and not public and home[: len(folder)] != tuple(folder):
                faults.append(f"tests/{test}:{node.lineno}: {module}")
    return faults


def test_tests_import_public_names_or_belong_to_the_module():
    """Support modules (tests/reference) and conftest.py may import everything: they do what many tests want done."""
    tests = [path.relative_to(ROOT / "tests") for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    tests = [path for path in tests if path.parts[0] not in UNCHECKED]
    faults = [fault for path in tests for fault in foreign(path, ast.parse((ROOT / "tests" / path).read_text()))]
    assert len(tests) > 200
    assert not faults, (
        "test the same through public names, move the test into the folder of the module, or let a function of "
        "tests/reference do it:\n" + "\n".join(faults)
    )


@pytest.mark.parametrize(("test", "source", "count"), [
    ("hybridlm/rows/test_x.py", "from hybridlm.rows.pool import RowPool", 0),
    ("hybridlm/rows/inner/test_x.py", "from hybridlm.rows import pool", 0),
    ("hybridlm/test_x.py", "from hybridlm.rows.pool import RowPool", 1),
    ("hybridlm/engine/test_x.py", "from hybridlm.rows import pool", 1),
    ("hybridlm/engine/test_x.py", "def f():\n    import ir_passes.proof.lane_proof", 1),
    ("hybridlm/engine/test_x.py", "from hybridlm.compiler.host import Slot\nfrom hybridlm.evals import HybridLM", 0),
    ("hybridlm/engine/test_x.py", "from hybridlm import demo\nfrom hybridlm.quantised import contradictions", 0),
    ("test_x.py", "from hybridlm import loading", 1),
])  # fmt: skip
def test_foreign_imports_are_seen(test: str, source: str, count: int):
    assert len(foreign(Path(test), ast.parse(source))) == count
