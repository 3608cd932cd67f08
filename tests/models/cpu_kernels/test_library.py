"""The kernel library is used only as built from these sources, or reported."""

import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from instruction_sets import described

from hybridlm.families import linear
from models import Devices
from models.cpu_kernels import build, library

module = sys.modules[library.__module__]


@pytest.fixture
def forgotten() -> Iterator[None]:
    """The process looks for the library anew, and afterwards finds its own again."""
    library.cache_clear()
    yield
    library.cache_clear()


def other_sources(path: Path) -> None:
    path.write_bytes(build.LIBRARY.read_bytes().replace(build.sources_hash().encode(), b"0" * 64))


def newer_headers(path: Path) -> None:
    content, result = re.subn(rb"XLA_FFI_API 0\.\d", b"XLA_FFI_API 1.0", build.LIBRARY.read_bytes())
    path.write_bytes(content)
    assert result == 1 and not build.is_current(path)


def no_library(path: Path) -> None:
    path.write_text(f"{build.sources_hash()} is named, and this is no program")


def of_everybody(path: Path) -> None:
    path.write_bytes(build.LIBRARY.read_bytes())
    path.chmod(0o757)


CASES: dict[str, Any] = {
    "is writable by users": of_everybody,
    "not built": lambda path: None,
    "other sources": other_sources,
    "newer jaxlib": newer_headers,
    "cannot be loaded": no_library,
}


@pytest.mark.cpu_kernels
@pytest.mark.parametrize("why", CASES)
def test_without_a_library_products_are_xlas(
    why: str, tmp_path: Path, forgotten: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / build.NAME
    CASES[why](path)
    monkeypatch.setattr(module, "LIBRARY", path)
    x, weight, devices = jnp.ones((2, 8)), jnp.ones((4, 8), jnp.bfloat16), Devices(kernels="auto")
    with caplog.at_level(logging.WARNING, "hybridlm"):
        for _ in range(2):
            assert "ffi_call" not in str(jax.make_jaxpr(lambda x, w: linear(x, w, devices))(x, weight))
    (line,) = caplog.messages
    assert why in line and module.BUILD in line


@pytest.mark.cpu_kernels
@pytest.mark.skipif(sys.platform != "linux", reason="Linux describes the processor in a file")
def test_instruction_sets_are_those_that_the_processor_has():
    result = library()
    assert result is not None and set(result.instructions) == described()


def test_headers_match_jax():
    assert str(build.headers()) == jax.ffi.include_dir()


@pytest.mark.cpu_kernels
def test_a_failed_build_gives_the_reason_and_keeps_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    target, source = tmp_path / build.NAME, tmp_path / "wrong.cc"
    target.write_text("as it was")
    source.write_text("no C++\n")
    with pytest.raises(build.BuildError, match=r"wrong\.cc"):
        build.build(target, program=[source])
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.BuildError, match="CXX='no-such-compiler'"):
        build.build(target)
    assert target.read_text() == "as it was" and {item.name for item in tmp_path.iterdir()} == {
        target.name,
        source.name,
    }


@pytest.mark.parametrize("tag", ["manylinux_2_28_x86_64", "manylinux_2_28_aarch64"])
def test_a_platform_has_its_compiler(tag: str):
    command, machine = build.cross_compiler(tag)
    assert f"{machine}-linux-gnu.2.28" in command and tag.endswith(machine)


def test_other_platforms_are_refused():
    with pytest.raises(build.BuildError, match="win_amd64"):
        build.cross_compiler("win_amd64")


def test_who_builds_needs_nothing_of_the_package():
    """The build hook has neither JAX nor flax."""
    code = "import sys; sys.modules['jax'] = None; sys.path.pop(0); import build; print(build.sources_hash())"
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=build.FOLDER,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(build.FOLDER)},
    )
    assert process.stdout.strip() == build.sources_hash(), process.stderr


def test_fastest_instructions_are_an_option() -> None:
    can_run = ("portable", "avx2", "avx512")
    assert [module.up_to(item, can_run) for item in ("portable", "avx2", "", None)] == [
        can_run[:1], can_run[:2], can_run, can_run
    ]  # fmt: skip
    with pytest.raises(ValueError, match=f"{module.FASTEST}='amx'.*portable, avx2, avx512"):
        module.up_to("amx", can_run)


@pytest.mark.usefixtures("forgotten")
def test_kernels_run_no_faster_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(module.FASTEST, "portable")
    result = library()
    assert result is not None and result.instructions == ("portable",) and result.name.endswith(" portable")
