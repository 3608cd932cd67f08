"""The compiler's surface: few public names, the rest in submodules, each in one place."""

import subprocess
import sys
from collections import Counter
from importlib import import_module
from pkgutil import iter_modules

import pytest

import ir_passes
from hybridlm import compiler

SUBMODULES = sorted(module.name for module in iter_modules(compiler.__path__))


@pytest.mark.slow
@pytest.mark.parametrize("statement", [
    "from hybridlm.compiler import Lane; from hybridlm.compiler.host import SlotOwner",
    "import hybridlm; hybridlm.compiler.scratch.verify_plan, hybridlm.compiler.compile_step",
])  # fmt: skip
def test_a_fresh_process_imports(statement: str) -> None:
    subprocess.run([sys.executable, "-c", statement], check=True)


def test_public_names_are_few_and_from_the_package() -> None:
    assert len(compiler.__all__) <= 24
    assert set(compiler.__all__) <= set(ir_passes.__all__)
    for name in compiler.__all__:
        assert getattr(compiler, name) is getattr(ir_passes, name)


def test_each_name_has_one_place() -> None:
    modules = [compiler, *(import_module(f"hybridlm.compiler.{name}") for name in SUBMODULES)]
    names = Counter(name for module in modules for name in module.__all__)
    assert [name for name, count in names.items() if count > 1] == []
    assert not set(names) & set(SUBMODULES)
    for module in modules:
        assert all(hasattr(module, name) for name in module.__all__)


def test_submodules_are_attributes() -> None:
    assert SUBMODULES
    for name in SUBMODULES:
        assert getattr(compiler, name) is import_module(f"hybridlm.compiler.{name}")
