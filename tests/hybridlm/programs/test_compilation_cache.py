"""JAX's compilation cache: one folder at a time."""

import threading
from concurrent.futures import ThreadPoolExecutor

import jax

from hybridlm.programs.compilation_cache import use_cache


def setting() -> str | None:
    """JAX's setting as this thread has it."""
    return jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]  # made when JAX is imported


def test_compilations_for_one_folder_run_together_and_those_for_another_wait() -> None:
    """JAX has one cache at a time; its setting follows the compiling thread."""
    initial = setting()
    inner, leave, order = threading.Event(), threading.Event(), list[str | None]()

    def compile_for(folder: str) -> None:
        with use_cache(folder):
            order.append(setting())
            inner.set()
            leave.wait(10)

    with ThreadPoolExecutor(3) as pool:
        future = pool.submit(compile_for, "/one")
        assert inner.wait(10) and setting() == initial
        with use_cache("/one"):
            other = pool.submit(compile_for, "/other")
            assert order == ["/one"]
        leave.set()
        future.result(10)
        other.result(10)
    assert order == ["/one", "/other"] and setting() == initial
