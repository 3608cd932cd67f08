"""Settings of every test: strict dtypes, eight virtual CPU devices, a private compilation cache.

Warnings are errors and array annotations of hybridlm and models are executed (pyproject.toml, [tool.pytest]).
"""

import functools
import gc
import importlib.metadata
import importlib.util
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# XLA compiles in a third of the time: LLVM leaves the loops alone, and fusions and scatters are emitted in an
# older and simpler way, which later versions do not have. Tests about XLA's own programs compile those as for users
# (tests/reference/compiled/as_for_users.py); parts of .ci/run and .ci/long compile everything so.
_flags = os.environ.get("XLA_FLAGS", "").split()
if not any("xla_backend_optimization_level" in flag for flag in _flags):
    # A program is compiled as one module: dividing the small ones of tests among threads costs a sixth of the time.
    _flags.extend(["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"])
    # libtpu ends a process with a flag that it does not know.
    if importlib.metadata.version("jaxlib").startswith("0.10.") and importlib.util.find_spec("libtpu") is None:
        _flags.append("--xla_cpu_use_fusion_emitters=false")
if not any("xla_force_host_platform_device_count" in flag for flag in _flags):
    _flags.append("--xla_force_host_platform_device_count=8")
os.environ["XLA_FLAGS"] = " ".join(_flags)
# Of the tests alone and gone with them: nobody's own cache is read or written, and no test sees an executable that an
# older run compiled. Tests that compile the same step share it, workers of pytest-xdist and processes that tests start
# included; so do the stages of .ci/run, by a folder of its own.
_cache = None
if "HYBRIDLM_TESTS_CACHE" in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ["HYBRIDLM_TESTS_CACHE"]
elif "PYTEST_XDIST_WORKER" not in os.environ:
    _cache = tempfile.TemporaryDirectory(prefix="hybridlm-tests-", ignore_cleanup_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache.name

# No imported or collected object is garbage; looking for it takes a third of that time.
gc.disable()

import hypothesis
import jax
import pytest
from chosen_tests import pytest_addoption, pytest_collection_modifyitems

__all__ = ["pytest_addoption", "pytest_collection_modifyitems"]

# A machine that is busy is no fault of a test.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@functools.cache
def kernel_builder() -> Any:
    """Load models.cpu_kernels.build without its package.

    Its import takes 6 s of a processor, and the first process of xdist runs no tests.
    """
    package = importlib.util.find_spec("models")
    assert package is not None and package.submodule_search_locations is not None
    path = Path(package.submodule_search_locations[0], "cpu_kernels", "build.py")
    spec = importlib.util.spec_from_file_location("cpu_kernels_build", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pytest_configure(config: pytest.Config) -> None:
    """Rebuild the CPU kernels if their sources have changed since installation."""
    build = kernel_builder()
    if not hasattr(config, "workerinput") and not build.is_current() and build.compiler() is not None:
        build.build()


@functools.cache
def has_no_compiler() -> bool:
    """Whether there can be no kernels for CPUs here."""
    build = kernel_builder()
    return not build.is_current() and build.compiler() is None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need a GPU or the kernel library if it is missing."""
    if (
        item.get_closest_marker("gpu") is not None and jax.default_backend() != "gpu"
    ):  # a keyword is a folder's name, too
        pytest.skip(f"needs a GPU; jax runs on {jax.default_backend()} here")
    if item.get_closest_marker("cpu_kernels") is not None and has_no_compiler():
        pytest.skip("no kernels for CPUs: there is no C++ compiler")


@pytest.fixture(scope="module")
def stored_steps() -> Iterator[None]:
    """Share compiled steps between the models of a file that patches no step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hybridlm.programs.programs.Programs.use_store", True)
        yield


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draft is verified, whatever it costs."""
    monkeypatch.setattr("hybridlm.engine.speculation.Speculation.always", True)


@pytest.fixture
def fast_gc() -> Iterator[None]:
    """Freeze all older objects: in a large process a `gc.collect` of them takes a second."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def kernels_are_current() -> bool:
    """Whether the kernels for CPUs are those of their sources."""
    return kernel_builder().is_current()


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the repository."""
    return Path(__file__).resolve().parents[1]


def pytest_collection_finish() -> None:
    """Freeze imported objects, so that the garbage collector runs rarely while steps are traced.

    What is garbage by then stays: looking for it takes 0.8 s of each process (2026-11-29).
    """
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    gc.enable()


MANY_PROGRAMS = 20_000
"""Pieces of memory; a process of Linux may have 65,530, and a compiled program takes a dozen or two."""
SECONDS = 1.0
"""Between two looks at them. Five long tests take 15,000."""


_looked = [time.monotonic()]


def pytest_runtest_teardown() -> None:
    """Let go of compiled programs that JAX keeps for functions of earlier tests."""
    maps = Path("/proc/self/maps")
    if time.monotonic() < _looked[0] + SECONDS or not maps.exists():
        return
    _looked[0] = time.monotonic()
    with maps.open() as lines:
        if sum(1 for _ in lines) > MANY_PROGRAMS:
            jax.clear_caches()
            gc.collect()


def pytest_unconfigure() -> None:
    if _cache is not None:
        _cache.cleanup()
