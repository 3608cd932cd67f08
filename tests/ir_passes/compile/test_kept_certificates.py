"""Stored certificates by other users, provers or programs certify no step."""

import os
import pkgutil
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_settings import jax_settings

from ir_passes import IsolationError, Lane, LaneContract, Pool, SlotMap, compile_step
from ir_passes.compile.stages import LoweredStep, trace_step

LANES, SLOTS, WIDTH = 3, 8, 4
CONTRACT = LaneContract((Pool("s"), SlotMap("s", SLOTS), Lane()), Pool("s"))


def add(pool: Any, slots: Any, x: Any) -> Any:
    rows = pool.at[slots].get(mode="fill", fill_value=0.0, wrap_negative_indices=False)
    return pool.at[slots].set(rows + x, mode="drop", wrap_negative_indices=False)


def leak(pool: Any, slots: Any, x: Any) -> Any:
    return add(pool, slots, x[::-1])


leak.__name__ = add.__name__


def args() -> tuple[Any, ...]:
    x = np.arange(LANES * WIDTH, dtype=np.float32).reshape(LANES, WIDTH)
    return jnp.zeros((SLOTS, WIDTH)), jnp.array([5, 1, 3], jnp.int32), jnp.asarray(x)


def forge(folder: Path) -> Path:
    """Write the leaky step's certificate, forged from the right step's; return its path."""
    folder.mkdir(parents=True)
    right = compile_step(add, args(), CONTRACT, passes=()).certificate
    key = trace_step(leak, args(), CONTRACT).prove(passes=(), certify="off")._step.key
    wrong = compile_step(leak, args(), CONTRACT, passes=(), certify="off").certificate.fingerprints
    prints = replace(right.fingerprints, traced=wrong.traced, compiled=wrong.compiled)
    path = folder / key.name
    path.write_text(replace(right, fingerprints=prints).to_json())
    return path


OPEN: dict[str, Callable[[Path], None]] = {
    "folder of everybody": lambda file: file.parent.chmod(0o777),
    "file of everybody": lambda file: file.chmod(0o666),
}
"""Each way to open a folder or file is in files/test_trust.py."""


@pytest.mark.parametrize("name", OPEN)
def test_forged_certificate_is_not_believed(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = forge(tmp_path / "shared" / "certificates")
    OPEN[name](file)
    with pytest.raises(IsolationError):
        compile_step(leak, args(), CONTRACT, passes=(), certificates=file.parent)
    # The right step is proved and runs; nothing is kept in a folder of others.
    step = compile_step(add, args(), CONTRACT, passes=(), certificates=file.parent)
    assert step.certificate.holds and not step.certificate.reused
    assert len(list(file.parent.iterdir())) == (2 if name.startswith("file") else 1)
    assert len(caplog.records) == 1 and "ch" in caplog.records[0].getMessage()


def test_forgery_is_one_where_nobody_checks(tmp_path: Path) -> None:
    """The forged file is trusted in the user's own folder."""
    file = forge(tmp_path / "certificates")
    assert compile_step(leak, args(), CONTRACT, passes=(), certificates=file.parent).certificate.reused


UPDATED = """
import os, sys
from pathlib import Path
import jax.numpy as jnp
from ir_passes import Lane, LaneContract, compile_step
from ir_passes.proof import registry

rules = Path(registry.__file__)
status = rules.stat()
rules.write_text(rules.read_text() + "# updated\\n")
if sys.argv[2] == "old times":
    os.utime(rules, ns=(status.st_atime_ns, status.st_mtime_ns))
step = compile_step(lambda x: x + 1, (jnp.ones(3),), LaneContract((Lane(),), Lane()), certificates=sys.argv[1])
assert step.certificate.holds and not step.certificate.reused
print(len(list(Path(sys.argv[1]).glob("*"))))
"""


@pytest.mark.slow
@pytest.mark.parametrize("times", ["new times", "old times"])
def test_process_whose_sources_were_updated_keeps_no_proof(times: str, tmp_path: Path, root: Path) -> None:
    """Its proof follows imported rules with another hash than the updated files."""
    shutil.copytree(root / "ir_passes", tmp_path / "ir_passes", ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path / "certificates"
    command = [sys.executable, "-W", "error", "-c", UPDATED, str(folder), times]
    variables = os.environ | {"PYTHONPATH": str(tmp_path)}
    result = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "0"


def test_proof_by_a_patched_rule_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule replaced in memory is in no hashed source file."""
    rules = pkgutil.resolve_name("ir_passes.proof.registry.RULES")
    other = rules["mul"]
    monkeypatch.setitem(rules, "mul", lambda *operands, **options: other(*operands, **options))
    compile_step(add, args(), CONTRACT, certificates=tmp_path)
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    assert not compile_step(add, args(), CONTRACT, certificates=tmp_path).certificate.reused
    assert compile_step(add, args(), CONTRACT, certificates=tmp_path).certificate.reused


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """A JAX compilation cache that stores every program."""
    path = tmp_path / "cache"
    args()  # compiles programs of JAX, which would be stored
    with jax_settings(jax_compilation_cache_dir=str(path), jax_persistent_cache_min_compile_time_secs=0.0):
        yield path


def lowered(fn: Any, certify: Any) -> LoweredStep:
    return trace_step(fn, args(), CONTRACT).prove(passes=(), certify=certify).lower()


def replace_entry(cache: Path) -> None:
    """Put the leaky program under the right program's key in JAX's cache."""
    results = []
    for fn in (add, leak):
        initial = set(cache.glob("*-cache"))
        lowered(fn, "off").compile()
        results += set(cache.glob("*-cache")) - initial
    right, wrong = results
    shutil.copyfile(wrong, right)
    jax.clear_caches()
    assert not is_right(lowered(add, "off").compile()), "JAX takes the entry: nothing was replaced otherwise"


def is_right(step: Any) -> bool:
    return bool((step(*args()) == add(*args())).all())


@pytest.mark.parametrize("certify", ["error", "warn"])
def test_replaced_entry_of_jaxs_cache_does_not_run_as_certified(certify: Any, cache: Path) -> None:
    replace_entry(cache)
    step = lowered(add, certify).compile()
    assert step.certificate.holds and is_right(step)


def test_another_thread_that_uses_the_cache_does_not_turn_it_on(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX asks once per process for a cache; here another thread asks first."""
    replace_entry(cache)
    compile = jax.stages.Lowered.compile

    def while_another_compiles(self: Any, *options: Any, **settings: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            thread = threading.Thread(target=lambda: jax.jit(lambda x: x * 3.0).lower(1.0).compile())
            thread.start()
            thread.join()
        return compile(self, *options, **settings)

    step = lowered(add, "error")
    monkeypatch.setattr(jax.stages.Lowered, "compile", while_another_compiles)
    assert is_right(step.compile())


def test_certified_steps_leave_nothing_in_jaxs_cache(cache: Path) -> None:
    lowered(add, "error").compile()
    assert not list(cache.glob("*"))
    lowered(add, "off").compile()
    assert list(cache.glob("*"))
