"""Settings of every test: strict dtypes and ranks, eight virtual CPU devices, a compilation cache of the tests' own.

Warnings are errors and array annotations of hybridlm and models are executed (pyproject.toml, [tool.pytest]).
"""

import os
import tempfile
from pathlib import Path

_flags = os.environ.get("XLA_FLAGS", "").split()
for _flag in (
    "--xla_force_host_platform_device_count=8",
    # XLA compiles in half the time: LLVM leaves the loops as they are, the programs above it stay the same. .ci/long
    # and a part of .ci/run compile as for users.
    "--xla_backend_optimization_level=0",
):
    if not any(given.startswith(_flag.split("=")[0]) for given in _flags):
        _flags.append(_flag)
os.environ["XLA_FLAGS"] = " ".join(_flags)
# Of the tests alone and gone with them: nobody's own cache is read or written, and no test sees an executable that an
# older run compiled. Tests that compile the same step share it, workers of pytest-xdist and processes that tests start
# included.
_cache = None
if "PYTEST_XDIST_WORKER" not in os.environ:
    _cache = tempfile.TemporaryDirectory(prefix="hybridlm-tests-", ignore_cleanup_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache.name

import hypothesis
import jax
import pytest

# A machine that is busy is no fault of a test.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the repository."""
    return Path(__file__).resolve().parents[1]


def pytest_unconfigure() -> None:
    if _cache is not None:
        _cache.cleanup()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are collected everywhere and say why they do not run."""
    if jax.default_backend() == "gpu":
        return
    skip = pytest.mark.skip(reason=f"needs a GPU; jax runs on {jax.default_backend()} here")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
