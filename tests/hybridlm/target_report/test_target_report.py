"""Reports on a model on a target: floors, memory, stored reports, refusals, the command line.

The target's devices are virtual CPUs, and numbers float32, since XLA:CPU copies caches of bfloat16. Tests marked
`target_cuda` and `target_tpu` have XLA's compilers for real ones.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from gguf_checkpoint import OF, write_gguf
from jax import export as jax_export
from packed_weights import packed_names
from traced_operations import traced_operations
from virtual_targets import SIZES, decode_and_keep, golden_engine, read_report, virtual_targets

import hybridlm
from hybridlm import EngineConfig, demo
from hybridlm.compiler.targets import Kernels, ScheduledKernel
from hybridlm.target_report import Recipe, TargetReport, report_on, target_engine
from hybridlm.target_report.fit import fit_of
from hybridlm.target_report.step_report import Floor, floor_of, step_report
from ir_passes.targets import TargetError, read_target
from models import KV_BLOCK


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for reports of a step that several tests look at."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path) -> Iterator[None]:
    with virtual_targets(tmp_path / "cache"):
        yield


def test_a_gguf_file_is_a_model(tmp_path: Path) -> None:
    """A GGUF file contains its configuration; there is no config.json."""
    path = write_gguf(tmp_path / "m.gguf", "qwen35")
    gguf_engine = target_engine(read_target("nvidia-h100"), EngineConfig(**SIZES), model=str(path))
    original = golden_engine(OF["qwen35"])
    config, expected = gguf_engine.row_arrays.model.config, original.row_arrays.model.config
    assert config.num_layers == expected.num_layers and config.vocab_size == expected.vocab_size


def floor(target: Any, step: Any, lanes: int, tokens: int, **fields: Any) -> Floor:
    floor = floor_of(target, target.shape(step, lanes, tokens, lanes, **fields), target.context)
    assert floor is not None
    return floor


def test_models_are_told_the_platform_of_the_target() -> None:
    gpu_engine = golden_engine()
    assert gpu_engine.placement.platform == "gpu" and gpu_engine.row_arrays.dtype == "float32"
    assert golden_engine(dtype="bfloat16").row_arrays.dtype == "bfloat16", "which on a CPU is float32"
    assert gpu_engine.row_arrays.model.layers[0].branches[1].inner.config.devices.platform == "gpu"


def test_floor_of_experts_and_keys() -> None:
    """3 of 8 experts per token meet an expert product; keys are of earlier blocks."""
    small = golden_engine(lanes=1)
    model = small.row_arrays.model
    experts = sum(param.size for param in small.params if param.ndim == 3 and param.shape[0] == 8)
    every = sum(param.size for param in small.params)
    table = 97 * 32
    state_size = model.state_size(small.row_arrays.dtype)
    vectors = sum(param.size for param in small.params if param.ndim < 2)
    step = floor(small, "generate", 1, 1)
    stored = sum(param.size * param.dtype.itemsize for param in small.params)
    assert every > experts == 2 * 8 * 3 * 16 * 32
    cached = state_size.token * (2 * KV_BLOCK + 1)
    assert step.moved == stored - 4 * table - 4 * experts * 5 // 8 + 4 * 32 + 2 * state_size.fixed + cached
    assert step.flops == 2 * (every - vectors - table - experts * 5 // 8)


@pytest.mark.parametrize("name", ["sparse_base", "dense_interval"])
def test_floor_of_packed_weights_has_their_bytes_and_the_same_products(name: str) -> None:
    """Floor: a quarter of the float32 bytes, and a bfloat16 scale per row."""
    plain, packed = golden_engine(name, lanes=1), golden_engine(name, lanes=1, recipe=Recipe.of("int8"))
    plain_floor, packed_floor = floor(plain, "generate", 1, 1), floor(packed, "generate", 1, 1)
    assert packed_floor.flops == plain_floor.flops
    saved = 0
    params: list[Any] = list(packed.params)
    for param in params:
        if packed_names({"param": param}):
            met = 3 / 8 if param.ndim == 3 else 1
            saved += met * (4 * param.size - param.nbytes)
            assert param.nbytes == param.size + 2 * param.size // param.inputs
    assert saved > 0 and plain_floor.moved - packed_floor.moved == saved


def test_floor_of_prompts_samples_one_token() -> None:
    dense = golden_engine("dense_interval")
    prompt, score = floor(dense, "generate", 4, 8), floor(dense, "score", 4, 8, top=0)
    head = 97 * 32
    assert score.flops - prompt.flops == 2 * 4 * 7 * head and prompt.moved == score.moved
    assert floor_of(dense, decode_and_keep(dense)[1], 256) is None


def test_floor_without_zeros_behind_keys_and_values() -> None:
    """A TPU pads heads of 8 to 128; other cache forms skip the zeros."""
    gpu, tpu = golden_engine(), golden_engine(target="tpu-v5e")
    assert tpu.row_bytes_on_a_device > gpu.row_bytes_on_a_device
    assert floor(tpu, "generate", 4, 1) == floor(gpu, "generate", 4, 1)


def test_fit_at_the_last_byte() -> None:
    base = golden_engine()
    weights, row = base.parameters_on_a_device[1], base.row_bytes_on_a_device
    page = base.row_arrays.model.state_size(base.row_arrays.dtype).token * KV_BLOCK
    nulls = 2 * page  # of the pool, and of the states of common prefixes
    need = weights + (4 + 5) * row + nulls + 1000
    fit = fit_of(base, need, "gpu", 1000, None)
    assert fit.fits and (fit.left, fit.most_lanes, fit.weights, fit.rows) == (0, 4, weights, 9 * row + nulls)
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" in fit.lines[-1]
    assert not fit_of(base, need - 1, "gpu", 1000, None).fits
    assert fit_of(base, need - 1, "gpu", 1000, None).most_lanes == 3
    # A fifth lane takes a row and a quarter more of the scratch; a sixth another of each.
    assert fit_of(base, need + row + 250, "gpu", 1000, None).most_lanes == 5
    assert fit_of(base, need + row + 249, "gpu", 1000, None).most_lanes == 4
    assert fit_of(base, weights, "gpu", None, None).most_lanes == 0
    padded = fit_of(base, need, "gpu", 1000, weights + 4 * row + page + 7)
    assert (padded.padding, padded.left) == (7, -7)


def test_longest_context() -> None:
    short = golden_engine("sparse_base", context=128)
    weights = short.parameters_on_a_device[1]

    def row(context: int) -> int:
        return golden_engine("sparse_base", context=context).row_bytes_on_a_device

    page = short.row_arrays.model.state_size(short.row_arrays.dtype).token * KV_BLOCK
    need = weights + 9 * row(384) + 2 * page
    fit = fit_of(short, need, "gpu", 0, None)
    assert (fit.longest_context, fit.context) == (384, 128)
    assert fit_of(short, need - 1, "gpu", 0, None).longest_context == 256
    assert fit_of(short, 1 << 40, "gpu", 0, None).longest_context == 512, "the model's own limit"


def test_largest_cache() -> None:
    """Report the largest KV cache that fits; null pages hold no positions."""
    roomy = golden_engine("sparse_base", context=512)
    weights, arrays = roomy.parameters_on_a_device[1], roomy.row_arrays
    size = arrays.model.state_size(arrays.dtype)
    page, rows = size.token * KV_BLOCK, 9 * (size.fixed + 4)  # and the last token of each row
    fit = fit_of(roomy, weights + rows + 2 * (1 + 7) * page, "gpu", 0, None)
    assert (fit.fits, fit.positions, fit.most_positions) == (False, 4 * 512, 7 * KV_BLOCK)
    assert "KV cache of 2,048 positions, at most 896 with 4 lanes" in fit.lines[1]
    limited = golden_engine("sparse_base", context=512, cache=7 * KV_BLOCK)
    fit = fit_of(limited, weights + rows + 2 * (1 + 7) * page, "gpu", 0, None)
    assert (fit.fits, fit.left, fit.positions) == (True, 0, 7 * KV_BLOCK)


def reported(progress: Any = None, **options: Any) -> TargetReport:
    engine = golden_engine(**options)
    return report_on(engine, decode_and_keep(engine), *([] if progress is None else [progress]))


@pytest.mark.slow
def test_report_is_kept_for_other_processes(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(folder / "cache"))
    first = reported()
    assert first.good and first.fit is not None and first.fit.fits
    decode, copy = first.steps
    assert decode.certificate is not None and decode.certificate.holds and decode.turns == 1
    assert decode.floor_moved is not None and decode.moved > decode.floor_moved
    assert decode.tokens_per_second is not None and decode.floor_seconds is not None
    assert decode.tokens_per_second * decode.floor_seconds == pytest.approx(4)
    assert copy.floor_moved is None and copy.kernels > 0
    assert read_report(first.to_json()) == first

    report = reported()
    assert report == replace(first, steps=tuple(replace(step, reused=True) for step in first.steps))
    monkeypatch.setattr(jax.stages.Lowered, "compile", refused)
    options: tuple[dict[str, Any], ...] = ({"target": "nvidia-h200"}, {"context": 128}, {"dtype": "bfloat16"})
    for other in options:
        with pytest.raises(AssertionError, match="compiled again"):
            reported(**other)


def test_blocks_of_the_cache_are_visited_and_further_passes_over_experts_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loops over blocks count all turns of a full context, further passes count none."""

    def kernel(name: str, loop: str | None, moved: int) -> ScheduledKernel:
        return ScheduledKernel(name, "fusion", "", "", moved, 0, moved, "bf16", 1, loop, ())

    over = "jit(step)/Moe/jit(expert_dot)/further_passes/while"
    kernels = kernel("once", None, 1), kernel("keys", "jit(step)/Attention/while", 10), kernel("pass", over, 1000)
    step: Any = SimpleNamespace(kernels=Kernels(kernels), certificate=None, kernel_resources=())
    keys: Any = jax.ShapeDtypeStruct((4, 32, 8 * KV_BLOCK, 8), "float32")
    for name, turns in (("nvidia-h100", 2), ("tpu-v5e", 8)):
        target = golden_engine(target=name)
        decode, _ = decode_and_keep(target)
        is_cache = lambda item: hasattr(item, "key")
        (cache, *_) = filter(is_cache, jax.tree.leaves(target.example_arguments(decode), is_leaf=is_cache))
        arguments = cache._replace(key=keys, value=None)
        monkeypatch.setattr(target, "example_arguments", lambda shape, arguments=arguments: (arguments,))
        report = step_report(target, decode, step, 8 * KV_BLOCK)
        assert (report.turns, report.kernels, report.moved, report.flops) == (turns, 1, *[1 + 10 * turns] * 2)


def refused(*args: Any, **options: Any) -> Any:
    raise AssertionError("compiled again")


def compiling(monkeypatch: pytest.MonkeyPatch, *messages: str) -> list[Any]:
    """Make XLA refuse as many programs with these messages; return the options of each compilation."""
    compile, calls, remaining = jax.stages.Lowered.compile, list[Any](), list(messages)

    def refusing(self: jax.stages.Lowered, compiler_options: Any = None) -> Any:
        calls.append(compiler_options)
        if remaining:
            raise jax.errors.JaxRuntimeError(remaining.pop(0))
        return compile(self, compiler_options)

    monkeypatch.setattr(jax.stages.Lowered, "compile", refusing)
    return calls


def test_step_that_is_not_compiled_is_a_fault_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    target = golden_engine()
    shapes = [decode_and_keep(target, lanes)[1] for lanes in (2, 4)]
    compiling(monkeypatch, "RESOURCE_EXHAUSTED: 83G exceeds 16G\nmore")
    report = report_on(target, shapes)
    assert not report.good and [bool(step.faults) for step in report.steps] == [True, False]
    assert report.steps[0].faults == ("XLA does not compile it for nvidia-h100: RESOURCE_EXHAUSTED: 83G exceeds 16G",)
    assert report.fit is not None and report.fit.padding == 0
    report = report_on(target, shapes)
    assert report.good and [step.reused for step in report.steps] == [False, True]


def test_products_without_tiles_are_left_to_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compiling(monkeypatch, "INTERNAL: Couldn't find output tile sizes that satisfy hlo", "INTERNAL: other")
    target = golden_engine()
    report = report_on(target, decode_and_keep(target)[:1])
    first, second = compiled
    assert second == first | {"xla_gpu_enable_triton_gemm": False} != first and not report.steps[0].certificate
    assert "INTERNAL: other" in report.steps[0].faults[0]


def test_mesh_has_the_devices_of_the_target() -> None:
    with pytest.raises(TargetError, match="nvidia-h100:2: expected a mesh of 2 devices, got one of 4"):
        golden_engine(target="nvidia-h100:2", mesh={"data": 2, "model": 2})
    meshed = golden_engine(target="nvidia-h100:2")
    assert meshed.placement.data == 2 and set(meshed.placement.local_devices) == set(jax.devices()[1:3])


@pytest.mark.parametrize(("target", "platform"), [("nvidia-h100", "cuda"), ("tpu-v5e", "tpu")])
def test_steps_are_exported_for_the_platform_of_the_target(
    target: str, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX exports them with all of its checks: it promises to keep every custom call."""
    exports, export = list[Any](), jax_export.export

    def noted(*args: Any, **options: Any) -> Any:
        return lambda *types: exports.append(export(*args, **options)(*types)) or exports[-1]

    monkeypatch.setattr(jax_export, "export", noted)
    dense = golden_engine("dense_interval", target)
    step = dense.program(decode_and_keep(dense)[0])
    text = step.export().text
    assert exports[0].platforms == (platform,) and text is not None
    assert "custom_call" not in text


@pytest.mark.parametrize("target", ["nvidia-h100", "tpu-v5e"])
def test_scatters_say_that_their_places_are_distinct(target: str) -> None:
    """XLA turns scatters with possible duplicates into compare-and-swap loops; counts may have duplicates."""
    base = golden_engine("sparse_base", target)
    decode, keep = decode_and_keep(base)
    for shape in (decode, base.shape("generate", 4, 8), keep):
        step, _ = base.programs.step(shape)
        operations = traced_operations(step, *base.example_arguments(shape))
        written = [operation for operation in operations if operation.name == "scatter"]
        shared = [operation.source for operation in written if not operation.params["unique_indices"]]
        assert (written or shape is keep) and shared == []


@pytest.mark.slow
def test_progress_is_told_before_each_step(folder: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(folder / "cache"))
    events: list[tuple[int, str]] = []
    reported(lambda count, name: events.append((count, name)))
    assert events == [(0, "generate 4x1 of 4"), (1, "keep a state of 4")]


def test_floor_of_the_embedded_model() -> None:
    config = json.loads((demo.path() / "config.json").read_text())
    lm = hybridlm.load(demo.path(), lanes=1, compilation_cache=False)
    floor = floor_of(lm.engine, lm.engine.shape("generate", 2, 1, 2), 129)
    assert floor is not None
    # two recurrent layers: 4 heads of 32 x 32, and 3 taps of 256 channels; one attention layer: 2 heads of 32
    state, token = 2 * 4 * (4 * 32 * 32 + 3 * 256), 2 * 2 * 32 * 4
    # the cache's block that is read, and the token that is written
    assert floor.moved == sum(array.nbytes for array in lm.params.values()) + 2 * (2 * state + (128 + 1) * token)
    assert floor.flops > 2 * 2 * config["vocab_size"] * config["hidden_size"]
