"""The benchmark without timing: arithmetic, table, picture, and one run on the embedded model."""

import math
import runpy
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from command_line import run_command
from hlo_text import module_of

import hybridlm
import models
from hybridlm import demo
from hybridlm.bench.engine_side import WARM_UP, EngineSide
from hybridlm.bench.limits import MachineLimits, measure_limits
from hybridlm.bench.llama_cpp import LlamaCppSide, parse_table
from hybridlm.bench.plot import plot
from hybridlm.bench.profile import part_of, parts_of_instructions, self_times
from hybridlm.bench.sides import SideFailed, Timing, in_turns, random_tokens
from hybridlm.target_report import Floor

TABLE = """
main: n_kv_max = 512

|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|    32 |     24 |    2 |    112 |    0.064 |   999.99 |    0.240 |   200.00 |    0.304 |   368.42 |
"""


def test_floor_is_the_longer_of_reads_and_products() -> None:
    # 4 MB of weights, and for each of 2 lanes 2 MB of state and 2 blocks of the cache
    floor = Floor(moved=4_000_000 + 2 * (2 * 1_000_000 + 2 * 500_000), flops=2 * 2_000_000 * 2)
    slow_memory = MachineLimits(read_bytes=1e9, float32_flops=1e12, bfloat16_flops=2e12)
    assert slow_memory.floor_seconds(floor) == pytest.approx(10e-3)
    slow_products = MachineLimits(read_bytes=1e15, float32_flops=1e9, bfloat16_flops=2e9)
    assert slow_products.floor_seconds(floor) == pytest.approx(2 * 2e6 * 2 / 2e9)


def test_limits_are_measured() -> None:
    limits = measure_limits(read=1 << 16, square=16)
    assert min(limits.read_bytes, limits.float32_flops, limits.bfloat16_flops) > 0


def test_sides_take_turns_and_ratios_are_of_one_round() -> None:
    order: list[str] = []

    def run(name: str) -> Callable[[], float]:
        return lambda: float(len(order)) + (order.append(name) or 0)

    in_turns([("a", run("a")), ("b", run("b"))], 3, set())
    assert order == ["a", "b"] * 3
    timings = in_turns([("a", lambda: 1.0), ("a", lambda: 1.0)], 2, set())
    assert timings == [Timing("a", (1.0, 1.0))] * 2  # two files of one name
    assert Timing("a", (1.0, 2.0, 1.0)).ratio(Timing("b", (2.0, 2.0, 3.0))) == (2.0, 1.0, 3.0)


def test_a_side_that_fails_has_no_further_turn_and_no_timing(capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []

    def run(name: str) -> float:
        order.append(name)
        if name == "b" and order.count("b") == 2:
            raise SideFailed("as asked")
        return 1.0

    left_out, runs = set[str](), [(name, partial(run, name)) for name in "abc"]
    timings = in_turns(runs, 3, left_out)
    assert left_out == {"b"} and timings == [Timing("a", (1.0,) * 3), Timing("c", (1.0,) * 3)]
    assert capsys.readouterr().err == "b is left out: as asked\n"
    assert order == ["a", "b", "c", "a", "b", "c", "a", "c"]


def test_failures_of_llama_cpp_say_how_it_ended(tmp_path: Path) -> None:
    program = tmp_path / "llama-batched-bench"
    for line, message in (("kill -SEGV $$", "SIGSEGV"), ("echo no model >&2; exit 2", "no model"), ("", "status 0")):
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
        with pytest.raises(SideFailed) as failed:
            LlamaCppSide(program, tmp_path / "131M-q8_0.gguf", 1, 8).decode(2)
        assert message in str(failed.value) and "-npl 1" in str(failed.value)


def test_reads_the_table_of_llama_cpp() -> None:
    (row,) = parse_table(TABLE)
    assert row["T_TG"] == 0.24 and row["T_PP"] == 0.064 and row["B"] == 2
    assert parse_table("error: no model") == []


def test_picture_is_well_formed_and_holds_every_value() -> None:
    document = plot("a < b", [1, 8], {"ours": [10.0, 55.0], "theirs": [8.0, 60.0]}, {"ours": [0.5, 0.7]})
    root = ElementTree.fromstring(document)
    assert len(root.findall("{*}circle")) == 6 and len(root.findall("{*}polyline")) == 3
    assert any(text.text == "a < b" for text in root.findall("{*}text"))
    heights = [float(circle.attrib["cy"]) for circle in root.findall("{*}circle")]
    assert heights[1] < heights[0] and heights[3] < heights[1]


def test_operations_belong_to_parts() -> None:
    assert part_of("jit(step)/GatedDeltaNet/mul") == "GatedDeltaNet"
    assert part_of("jit(step)/sample/cond/branch_1_fun/mul") == "sample"
    assert part_of("jit(step)/GatedDeltaNet/projection/dot_general") == "GatedDeltaNet projection"
    assert part_of("jit(step)/projection/dot_general") is None
    assert part_of("jit(step)/gt") is None and part_of("reduce_sum") is None
    module = """HloModule step, is_scheduled=true
%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %mul.1 = f32[4]{0} multiply(%p, %p), metadata={op_name="jit(step)/Mlp/mul"}
}
%unnamed (q: f32[4]) -> f32[4] {
  %q = f32[4]{0} parameter(0)
  ROOT %neg.1 = f32[4]{0} negate(%q)
}
ENTRY %main (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %call.3 = f32[4]{0} custom-call(%a), custom_call_target="hybridlm_row_product", metadata={op_name="jit(s)/f"}
  %fusion.1 = f32[4]{0} fusion(%call.3), kind=kLoop, calls=%unnamed, metadata={op_name="reduce_sum"}
  ROOT %fusion.2 = f32[4]{0} fusion(%fusion.1), kind=kLoop, calls=%fused, metadata={op_name="reduce_sum"}
}"""
    parts = parts_of_instructions(module_of(module))
    assert parts == {"mul.1": "Mlp", "call.3": "row product", "fusion.2": "Mlp"}


def test_time_inside_a_loop_is_counted_once() -> None:
    def event(op: str, start: float, duration: float, thread: int = 1) -> dict[str, Any]:
        return {"ph": "X", "pid": 1, "tid": thread, "ts": start, "dur": duration, "args": {"hlo_op": op}}

    events = [event("while", 0, 10), event("dot", 1, 3), event("dot", 5, 3), event("add", 10, 2), event("dot", 1, 1, 2)]
    assert self_times(events) == {"while": 4, "dot": 7, "add": 2}


@pytest.mark.slow
def test_our_side_dispatches_a_step_before_it_reads_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = hybridlm.load(demo.path(), lanes=2, compilation_cache=False)
    engine_side = EngineSide(lm, 2, 6)
    program, get, events = engine_side.program, jax.device_get, list[str]()
    monkeypatch.setattr(engine_side, "program", lambda *args: (events.append("dispatched"), program(*args))[1])
    monkeypatch.setattr(jax, "device_get", lambda tree: (events.append("read"), get(tree))[1])
    assert len(engine_side.decode(3)) == 3
    assert events == ["dispatched", "dispatched", "read", "dispatched", "read", "read"]
    monkeypatch.undo()
    engine_side.decode(2)
    prompts = random_tokens(2, 6, lm.config.vocab_size).tolist()
    expected = lm.generate(prompts, max_tokens=1 + WARM_UP + 3 + 2, temperature=0, ignore_eos=True)
    assert engine_side.last.tolist() == [completion.token_ids[-1] for completion in expected]


def test_compared_copies_need_different_names() -> None:
    command = ["bench", "--model", demo.path(), "--beside", "a/int8", "--beside", "b/int8"]
    result = run_command(*command, code=1)
    assert "--beside" in result.output


def test_a_context_that_is_too_short_is_refused() -> None:
    result = run_command("bench", "--model", demo.path(), "--context", "40", code=1)
    assert "context: expected at least 128" in result.output


def test_a_peer_that_is_not_installed_is_named_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridlm.errors.find_spec", lambda name: None if name == "transformers" else name)
    command = ["bench", "--model", demo.path(), "--against", "transformers-float32"]
    result = run_command(*command, code=1)
    assert 'pip install "hybridlm[bench]"' in " ".join(result.output.split()), result.output


@pytest.mark.slow
def test_a_bench_checkpoint_is_the_same_every_time_and_loads(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(root / "scripts" / "benchmarks")
    script = runpy.run_path(str(root / "scripts" / "benchmarks" / "make_bench_checkpoint.py"))
    config = script["BENCH_MODELS"]["131M"] | {
        "vocab_size": 1024, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "linear_num_key_heads": 2,
        "linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    }  # fmt: skip
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        script["write"](tmp_path / name, config, seed)
    contents = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert contents[0] == contents[1] != contents[2]
    lm = hybridlm.load(tmp_path / "a", lanes=1, context=16, compilation_cache=False)
    logits = np.asarray(lm.forward([5, 6, 7]).logits)
    assert np.isfinite(logits).all() and 0.3 < logits.std() < 3.0
    assert lm.tokenizer is not None
    script["write"](tmp_path / "d", config, 0, head=True)
    with_head = hybridlm.load(tmp_path / "d", lanes=1, context=16, compilation_cache=False, speculate="mtp")
    assert (np.asarray(with_head.forward([5, 6, 7]).logits) == logits).all(), "the same model, and its head beside it"


@pytest.mark.parametrize(("name", "sizes"), [
    ("mamba2", {"num_hidden_layers": 2, "num_heads": 4, "head_dim": 16, "state_size": 8}),
    ("kda", {"kv_lora_rank": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 48}),
    ("shortconv", {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 48}),
])  # fmt: skip
def test_every_mixer_has_a_bench_checkpoint(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, name: str, sizes: dict[str, Any]
) -> None:
    """Models have at least 100M parameters; norms and skips near 1 keep every layer active."""
    monkeypatch.syspath_prepend(root / "scripts" / "benchmarks")
    script = runpy.run_path(str(root / "scripts" / "benchmarks" / "make_bench_checkpoint.py"))
    config = script["BENCH_MODELS"][name]
    family = models.family_of(config)
    assert sum(math.prod(weight.shape) for weight in family.weights(family.read_config(config))) > 100e6
    script["write"](tmp_path, config | {"vocab_size": 512, "hidden_size": 32} | sizes, 0)
    params = hybridlm.load(tmp_path, lanes=1, context=16, compilation_cache=False).params
    scales = [array for path, array in params.items() if "norm" in path or path.endswith(".D")]
    assert scales and all(0.6 < float(scale.min()) <= float(scale.max()) < 1.4 for scale in scales)
