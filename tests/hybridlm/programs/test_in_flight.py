"""Programs that wait on devices with the threads of one CPU are few."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from random_checkpoint import write_random_checkpoint

import hybridlm
from hybridlm.programs import runner
from hybridlm.programs.runner import MAX_IN_FLIGHT, InFlight


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of arrays awaited each time."""
    counts: list[int] = []
    wait = jax.block_until_ready

    def block_until_ready(arrays: Any) -> Any:
        counts.append(len(jax.tree.leaves(arrays)))
        return wait(arrays)

    monkeypatch.setattr(runner.jax, "block_until_ready", block_until_ready)
    return counts


def test_all_that_are_left_are_waited_for(waited: list[int]) -> None:
    calls = InFlight()
    for i in range(2 * MAX_IN_FLIGHT + 1):
        held_array, consumed = jnp.zeros(3) + i, jnp.ones(2) + i
        calls.add({"one": held_array, "consumed": consumed})
        if i % MAX_IN_FLIGHT > 0:
            consumed.delete()
    # `one` of each call; of `consumed` the first and the last, which nothing has consumed when it is waited for
    assert waited == [MAX_IN_FLIGHT + 2, MAX_IN_FLIGHT + 2]


def test_an_interrupted_wait_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(arrays: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.jax, "block_until_ready", interrupt)
    calls = InFlight()
    for _ in range(2):
        for _ in range(MAX_IN_FLIGHT - 1):
            calls.add(jnp.zeros(3))
        with pytest.raises(KeyboardInterrupt):
            calls.add(jnp.zeros(3))


@pytest.mark.slow
def test_every_call_over_several_devices_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_random_checkpoint("dense_base", tmp_path, num_hidden_layers=2, full_attention_interval=2)
    counted: list[Any] = []
    monkeypatch.setattr(InFlight, "add", lambda self, results: counted.append(results))
    for mesh in (None, hybridlm.mesh(data=2)):
        counted.clear()
        lm = hybridlm.load(
            directory, lanes=2, context=32, chunk=4, mesh=mesh, prefix_cache="4MB", certify="off", progress=False
        )
        lm.generate([[3, 4, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14]], max_tokens=3, ignore_eos=True)
        stats = lm.engine.stats
        assert stats["steps"] > 2
        if mesh is None:
            assert not counted, "one device never waits"
        else:
            assert len(counted) > stats["steps"], "steps, and moves of states to the cache"
