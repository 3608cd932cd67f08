"""The guard against foreign `models` and `ir_passes`, one Python process per case."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MARKER = 'DISTRIBUTION = "hybridlm"\n'


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """An installation with the real guard and otherwise empty packages: a case takes milliseconds."""
    folder = tmp_path / "installed"
    for name in ("hybridlm", "ir_passes", "models"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(MARKER)
    (folder / "hybridlm" / "siblings.py").write_bytes((ROOT / "hybridlm" / "siblings.py").read_bytes())
    (folder / "hybridlm" / "__init__.py").write_text(
        "from hybridlm.siblings import require_siblings\nrequire_siblings()\n" + MARKER
    )
    return folder


@pytest.fixture
def user(tmp_path: Path) -> Path:
    folder = tmp_path / "user"
    folder.mkdir()
    return folder


def run(code: str, installed: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True)


def catch(code: str) -> str:
    """Code that runs `code` and prints the fields of the error, then its text."""
    return (
        "try:\n"
        + "".join(f"    {line}\n" for line in code.splitlines())
        + "except ImportError as error:\n    print(type(error).__name__, error.name, error.path)\n    print(error)\n"
    )


def assert_refused(result: subprocess.CompletedProcess[str], name: str, path: Path, expected: Path, reason: str):
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"ImportError {name} {path}\n"), result.stdout
    for part in (f"found:    {path}\n", f"expected: {expected}\n", reason, "rename", "another directory", "reinstall"):
        assert part in result.stdout, f"{part!r} is not in\n{result.stdout}"
    assert "EXECUTED" not in result.stdout, "the foreign package was executed"


def test_clean(installed: Path, user: Path):
    result = run("import hybridlm, models, ir_passes; print(models.__file__)", installed, user)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(installed / "models" / "__init__.py")


@pytest.mark.parametrize("name", ["models", "ir_passes"])
def test_regular_package_in_the_current_directory(installed: Path, user: Path, name: str):
    (user / name).mkdir()
    (user / name / "__init__.py").write_text("print('EXECUTED')\n")
    actual, expected = user / name / "__init__.py", installed / name / "__init__.py"
    assert_refused(run(catch("import hybridlm"), installed, user), name, actual, expected, "current directory")


@pytest.mark.parametrize("name", ["models", "ir_passes"])
def test_module_in_the_current_directory(installed: Path, user: Path, name: str):
    (user / f"{name}.py").write_text("print('EXECUTED')\n")
    actual, expected = user / f"{name}.py", installed / name / "__init__.py"
    assert_refused(run(catch("import hybridlm"), installed, user), name, actual, expected, "current directory")


def test_namespace_folder_does_not_hide_ours(installed: Path, user: Path):
    (user / "models").mkdir()
    (user / "models" / "checkpoint.txt").write_text("weights\n")
    result = run("import hybridlm, models; print(models.__file__)", installed, user)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(installed / "models" / "__init__.py")


def test_preloaded_package(installed: Path, user: Path):
    elsewhere = user / "elsewhere"
    (elsewhere / "models").mkdir(parents=True)
    output = elsewhere / "models" / "__init__.py"
    output.write_text("")
    code = f"import sys; sys.path.insert(0, {str(elsewhere)!r}); import models; sys.path.pop(0)\n"
    result = run(code + catch("import hybridlm"), installed, user)
    assert_refused(result, "models", output, installed / "models" / "__init__.py", "already imported")


def test_preloaded_namespace_folder(installed: Path, user: Path):
    elsewhere = user / "elsewhere"
    (elsewhere / "models").mkdir(parents=True)
    code = f"import sys; path = sys.path[:]; sys.path[:] = [{str(elsewhere)!r}]; import models; sys.path[:] = path\n"
    result = run(code + catch("import hybridlm"), installed, user)
    expected = installed / "models" / "__init__.py"
    assert_refused(result, "models", elsewhere / "models", expected, "already imported")


def test_preloaded_without_spec(installed: Path, user: Path):
    code = "import sys, types; sys.modules['models'] = types.ModuleType('models')\n"
    result = run(code + catch("import hybridlm"), installed, user)
    assert "found:    nothing" in result.stdout and "already imported" in result.stdout, result.stdout + result.stderr


def test_our_own_packages_may_be_preloaded(installed: Path, user: Path):
    result = run("import models, ir_passes, hybridlm", installed, user)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("text", ["", 'DISTRIBUTION = "another"\n'])
def test_wrong_marker(installed: Path, user: Path, text: str):
    result = installed / "models" / "__init__.py"
    result.write_text(text)
    assert_refused(run(catch("import hybridlm"), installed, user), "models", result, result, "overwritten")


def test_missing_package(installed: Path, user: Path):
    (installed / "models" / "__init__.py").unlink()
    (installed / "models").rmdir()
    result = run(catch("import hybridlm"), installed, user)
    # Where hybridlm is installed next to the tests, that installation's `models` is found instead of nothing.
    assert result.stdout.startswith("ImportError models "), result.stdout + result.stderr
    assert "the installation of hybridlm is incomplete" in result.stdout


def test_guard_is_the_first_statement_of_the_package():
    body = ast.parse((ROOT / "hybridlm" / "__init__.py").read_text()).body
    assert [ast.unparse(node) for node in body[1:3]] == [
        "from hybridlm.siblings import require_siblings",
        "require_siblings()",
    ]


@pytest.mark.slow
def test_real_package_refuses_before_it_loads_anything_else(user: Path):
    (user / "models").mkdir()
    output = user / "models" / "__init__.py"
    output.write_text("print('EXECUTED')\n")
    result = run(catch("import hybridlm"), ROOT, user)
    assert_refused(result, "models", output, ROOT / "models" / "__init__.py", "current directory")
