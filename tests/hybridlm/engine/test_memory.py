"""A model that does not fit is refused before anything large is allocated, with the arithmetic."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import run_command
from text_checkpoint import GOLDEN, write_text_checkpoint

import hybridlm
from hybridlm import EngineConfig, InsufficientMemory, loading
from hybridlm.checkpoint import open_model
from hybridlm.engine import memory
from hybridlm.engine.abstract import abstract_engine
from hybridlm.engine.engine import Engine
from hybridlm.engine.memory import Demand, available_memory
from hybridlm.target_report import Recipe
from ir_passes.targets import read_target

MB = 1 << 20


PAGE = MB // 8


def demand(scratch: int = 0) -> Demand:
    return Demand(weights=100 * MB, row=MB, page=PAGE, lanes=8, states=5, context=4096, scratch=scratch)


def pool(lanes: int, context: int, pages: int) -> int:
    """Bytes of the pool and of five states, each with at most `pages` pages and a null page."""
    return sum(MB * rows + PAGE * (1 + min(rows * context // 128, pages)) for rows in (lanes, 5))


def test_the_sum() -> None:
    needed = 100 * MB + pool(8, 4096, 256)
    assert demand().total == needed == 100 * MB + 13 * 5 * MB + 2 * PAGE
    demand().require(needed)
    demand().require(None)
    with pytest.raises(
        InsufficientMemory, match=r"8 lanes and 5 states while scoring x 1.049 MB \+ KV cache of 418 pages x"
    ):
        demand().require(needed - 1)
    with pytest.raises(InsufficientMemory, match="scratch of the largest step 1.049 MB = 174"):
        demand(scratch=MB).require(needed)


def test_a_limit_of_the_kv_cache_counts() -> None:
    limited = replace(demand(), page_limit=150)
    needed = 100 * MB + 13 * MB + PAGE * (151 + 151)
    assert limited.total == needed
    with pytest.raises(InsufficientMemory, match=r"KV cache of 302 pages .* limited by cache"):
        limited.require(needed - 1)
    assert replace(demand(), page_limit=10**6).total == demand().total
    assert replace(demand(), page=0).total == 113 * MB, "a model without a KV cache"


def test_a_prefix_cache_counts() -> None:
    cached = replace(demand(), prefix_cache=20 * MB)
    needed = demand().total + 20 * MB
    cached.require(needed)
    with pytest.raises(InsufficientMemory, match=r"prefix_cache 20\.97 MB = .* or a smaller prefix_cache would"):
        cached.require(needed - 1)


def test_the_proposed_sizes_are_the_largest_that_fit() -> None:
    """Each suggestion fits, and the next larger one does not."""
    available = 100 * MB + 51 * MB
    with pytest.raises(InsufficientMemory, match="not fit: weights 104.9 MB") as raised:
        demand().require(available)
    match = re.search(r"; lanes=(\d+) or context=(\d+) or cache=(\d+) would fit$", str(raised.value))
    assert match is not None
    lanes, context, cache = map(int, match.groups())
    fits = lambda lanes, context, cache=10**9: 100 * MB + pool(lanes, context, cache // 128) <= available
    assert fits(lanes, 4096) and not fits(lanes + 1, 4096)
    assert fits(8, context) and not fits(8, context + 128)
    assert fits(8, 4096, cache) and not fits(8, 4096, cache + 128)


def test_nothing_would_fit() -> None:
    with pytest.raises(InsufficientMemory, match="not even one lane would fit"):
        demand().require(MB)


def test_load_refuses_before_weights_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_text_checkpoint(tmp_path)
    monkeypatch.setattr(memory, "available_memory", lambda placement: 10_000)
    monkeypatch.setattr(loading, "load_parameters", lambda *args: pytest.fail("weights were read"))
    with pytest.raises(InsufficientMemory, match="rows of 3 lanes and 4 states while scoring x"):
        hybridlm.load(directory, lanes=3)


def test_over_a_mesh_bytes_are_per_device(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes are divided; weights that virtual devices have alike lie there once for all of them."""
    demands: list[Demand] = []
    monkeypatch.setattr(Demand, "require", lambda self, available: demands.append(self))
    hybridlm.load(text_lm.path, lanes=8, context=256)
    hybridlm.load(text_lm.path, lanes=8, context=256, mesh=hybridlm.mesh(data=4))
    demand, each = demands
    assert (each.lanes, each.states, each.devices) == (2, 5, 4) and (demand.lanes, demand.states) == (8, 5)
    assert (each.row, each.page) == (
        demand.row,
        demand.page,
    ) and demand.weights // 4 - 64 <= each.weights <= demand.weights // 4
    monkeypatch.undo()
    memory_of_device = available_memory(EngineConfig(mesh=hybridlm.mesh(data=4)).place())
    assert memory_of_device is None or memory_of_device < MB + (available_memory() or 0) // 3
    split = replace(each, row=MB, page=MB, weights=0, context=512)
    with pytest.raises(InsufficientMemory, match=r"on each of 4 devices: .* lanes=4 or context=384 or cache=3584"):
        split.require(split.total - 1)


@pytest.mark.long
def test_load_counts_the_scratch_of_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled steps decide where weights and rows just fit; no pool has been allocated by then."""
    directory = write_text_checkpoint(tmp_path)
    totals: list[int] = []
    real = Demand.require

    def require(self: Demand, available: int | None) -> None:
        totals.append(self.total)
        real(self, available)

    monkeypatch.setattr(Demand, "require", require)
    hybridlm.load(directory, lanes=1, context=32, chunk=4)
    (needed,) = totals
    monkeypatch.setattr(memory, "available_memory", lambda placement: needed)
    monkeypatch.setattr(Engine, "new_pool", lambda *args: pytest.fail("a pool was allocated"))
    weights = sum(array.nbytes for array in hybridlm.load(directory, lanes=1, context=32, chunk=4).params.values())
    monkeypatch.setattr(memory, "available_memory", lambda placement: needed - weights)
    monkeypatch.setattr(Demand, "require", lambda self, available: real(self, available) if self.scratch else None)
    with pytest.raises(InsufficientMemory, match="scratch of the largest step"):
        hybridlm.load(directory, lanes=1, context=32, chunk=4)


@pytest.mark.parametrize(("speculate", "counted"), [(None, 1000), ("ngram", 5000)])
def test_load_counts_the_scratch_of_the_step_that_verifies_drafts(
    text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch, speculate: Any, counted: int
) -> None:
    scratch: list[int] = []

    def compiled(self: Any, shape: Any, arguments: Any) -> Any:
        assert (shape.lanes, shape.tokens) == (3, 10) or shape.step == "generate"
        temp = 5000 if shape.step == "verify" else 1000
        return SimpleNamespace(certificate=SimpleNamespace(memory=SimpleNamespace(temp=temp)))

    monkeypatch.setattr(memory, "available_memory", lambda placement: 0)
    monkeypatch.setattr("hybridlm.programs.programs.Programs.compiled", compiled)
    monkeypatch.setattr(Demand, "require", lambda self, available: scratch.append(self.scratch))
    hybridlm.load(text_lm.path, lanes=3, context=256, chunk=5, speculate=speculate, draft_tokens=9)
    assert scratch[-1] == counted


def test_size_of_a_quantised_checkpoint(tmp_path: Path) -> None:
    """A plan and a target count the bytes that `load` keeps."""
    options: Any = {"lanes": 2, "context": 32, "dtype": "float32"}
    run_command("quantise", GOLDEN.parent / "sparse_base", tmp_path / "copy", "--scheme", "fp8-block")
    parameters_on_a_device = hybridlm.load(tmp_path / "copy", **options).engine.parameters_on_a_device
    config, target = tmp_path / "copy" / "config.json", read_target("nvidia-h100")
    directory, _, _ = open_model(tmp_path / "copy")
    planned = abstract_engine(config, EngineConfig(**options), target=target, recipe=Recipe.of("fp8-block"))
    of_headers = abstract_engine(config, EngineConfig(**options), target=target, checkpoint=directory)
    assert planned.parameters_on_a_device == of_headers.parameters_on_a_device == parameters_on_a_device
    plain = abstract_engine(config, EngineConfig(**options))
    assert (
        plain.parameters_on_a_device[0] == parameters_on_a_device[0]
        and plain.parameters_on_a_device[1] > parameters_on_a_device[1]
    )
