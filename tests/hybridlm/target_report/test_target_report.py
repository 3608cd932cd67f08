"""Reports on a model on a target: floors, memory, stored reports, refusals, the command line.

The target's devices are virtual CPUs, and numbers float32, since XLA:CPU copies caches of bfloat16. Tests marked
`target_cuda` and `target_tpu` have XLA's compilers for real ones.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import pytest
from gguf_checkpoint import OF, write_gguf
from jax.experimental import topologies
from jax_settings import jax_settings

import hybridlm
from hybridlm import EngineConfig, demo
from hybridlm.compiler.targets import Kernels, ScheduledKernel
from hybridlm.engine.engine import Engine
from hybridlm.programs.programs import OPTIONS
from hybridlm.programs.shapes import Shape
from hybridlm.rows.parts import PartShape
from hybridlm.target_report import Recipe, TargetReport, report_on, target_engine
from hybridlm.target_report.fit import fit_of
from hybridlm.target_report.step_report import Floor, floor_of, step_report
from ir_passes.compile import exported
from ir_passes.files.record import from_json
from ir_passes.jaxpr import ir
from ir_passes.targets import TargetError, read_target
from ir_passes.targets.target import NO_TPU
from models import KV_BLOCK
from models.mixers.kv_cache import KVCache
from models.ops.expert_dot import FURTHER_PASSES
from models.ops.quantised_weight import QuantisedWeight

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
SIZES: dict[str, Any] = {"lanes": 4, "context": 256, "chunk": 8, "dtype": "float32"}
SHAPES = DECODE, KEEP = Shape("generate", 4, 1, 4, pages=9, blocks=2), PartShape("state", True, 4, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for reports of a step that several tests look at."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("jax_plugins.xla_cuda13", "jax_cuda13_plugin", "libtpu"):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)

    def topology(topology: str = "1", **_: Any) -> Any:
        return SimpleNamespace(devices=jax.devices()[1 : 1 + int(topology.split("x")[-1])])

    monkeypatch.setattr(topologies, "get_topology_desc", topology)
    with jax_settings(jax_compilation_cache_dir=str(tmp_path / "cache")):
        yield


def engine(name: str = "sparse_base", target: str = "nvidia-h100", recipe: Recipe | None = None, **options: Any) -> Any:
    mesh, config = options.pop("mesh", None), GOLDEN / name / "config.json"
    return target_engine(read_target(target), EngineConfig(**SIZES | options), config=config, mesh=mesh, recipe=recipe)


def test_a_gguf_file_is_a_model(tmp_path: Path) -> None:
    """A GGUF file contains its configuration; there is no config.json."""
    path = write_gguf(tmp_path / "m.gguf", "qwen35")
    gguf_engine = target_engine(read_target("nvidia-h100"), EngineConfig(**SIZES), model=str(path))
    original = engine(OF["qwen35"])
    config, expected = gguf_engine.row_arrays.model.config, original.row_arrays.model.config
    assert config.num_layers == expected.num_layers and config.vocab_size == expected.vocab_size


def floor(target: Engine, shape: Shape) -> Floor:
    floor = floor_of(target, shape, target.context)
    assert floor is not None
    return floor


def test_models_are_told_the_platform_of_the_target() -> None:
    gpu_engine = engine()
    assert gpu_engine.placement.platform == "gpu" and gpu_engine.row_arrays.dtype == "float32"
    assert engine(dtype="bfloat16").row_arrays.dtype == "bfloat16", "which on a CPU is float32"
    assert gpu_engine.row_arrays.model.layers[0].branches[1].inner.config.devices.platform == "gpu"


def test_floor_of_experts_and_keys() -> None:
    """3 of 8 experts per token meet an expert product; keys are of earlier blocks."""
    small = engine(lanes=1)
    model = small.row_arrays.model
    experts = sum(param.size for param in small.params if param.ndim == 3 and param.shape[0] == 8)
    every = sum(param.size for param in small.params)
    table = 97 * 32
    state_size = model.state_size(small.row_arrays.dtype)
    vectors = sum(param.size for param in small.params if param.ndim < 2)
    step = floor(small, Shape("generate", 1, 1, 1))
    stored = sum(param.size * param.dtype.itemsize for param in small.params)
    assert every > experts == 2 * 8 * 3 * 16 * 32
    cached = state_size.token * (2 * KV_BLOCK + 1)
    assert step.moved == stored - 4 * table - 4 * experts * 5 // 8 + 4 * 32 + 2 * state_size.fixed + cached
    assert step.flops == 2 * (every - vectors - table - experts * 5 // 8)


@pytest.mark.parametrize("name", ["sparse_base", "dense_interval"])
def test_floor_of_packed_weights_has_their_bytes_and_the_same_products(name: str) -> None:
    """Floor: a quarter of the float32 bytes, and a bfloat16 scale per row."""
    plain, packed = engine(name, lanes=1), engine(name, lanes=1, recipe=Recipe.of("int8"))
    shape = Shape("generate", 1, 1, 1)
    plain_floor, packed_floor = floor(plain, shape), floor(packed, shape)
    assert packed_floor.flops == plain_floor.flops
    saved = 0
    for param in packed.params:
        if isinstance(param, QuantisedWeight):
            met = 3 / 8 if param.ndim == 3 else 1
            saved += met * (4 * param.size - param.nbytes)
            assert param.nbytes == param.size + 2 * param.size // param.inputs
    assert saved > 0 and plain_floor.moved - packed_floor.moved == saved


def test_floor_of_prompts_samples_one_token() -> None:
    dense = engine("dense_interval")
    prompt, score = floor(dense, Shape("generate", 4, 8, 4)), floor(dense, Shape("score", 4, 8, 4, 0))
    head = 97 * 32
    assert score.flops - prompt.flops == 2 * 4 * 7 * head and prompt.moved == score.moved
    assert floor_of(dense, KEEP, 256) is None


def test_floor_without_zeros_behind_keys_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A TPU pads heads of 8 to 128; other cache forms skip the zeros."""
    for name in NO_TPU:
        monkeypatch.delenv(name, raising=False)
    gpu, tpu = engine(), engine(target="tpu-v5e")
    assert tpu.row_bytes_on_a_device > gpu.row_bytes_on_a_device
    assert floor(tpu, DECODE) == floor(gpu, DECODE)


def test_fit_at_the_last_byte() -> None:
    base = engine()
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
    short = engine("sparse_base", context=128)
    weights = short.parameters_on_a_device[1]

    def row(context: int) -> int:
        return engine("sparse_base", context=context).row_bytes_on_a_device

    page = short.row_arrays.model.state_size(short.row_arrays.dtype).token * KV_BLOCK
    need = weights + 9 * row(384) + 2 * page
    fit = fit_of(short, need, "gpu", 0, None)
    assert (fit.longest_context, fit.context) == (384, 128)
    assert fit_of(short, need - 1, "gpu", 0, None).longest_context == 256
    assert fit_of(short, 1 << 40, "gpu", 0, None).longest_context == 512, "the model's own limit"


def test_largest_cache() -> None:
    """Report the largest KV cache that fits; null pages hold no positions."""
    roomy = engine("sparse_base", context=512)
    weights, arrays = roomy.parameters_on_a_device[1], roomy.row_arrays
    size = arrays.model.state_size(arrays.dtype)
    page, rows = size.token * KV_BLOCK, 9 * (size.fixed + 4)  # and the last token of each row
    fit = fit_of(roomy, weights + rows + 2 * (1 + 7) * page, "gpu", 0, None)
    assert (fit.fits, fit.positions, fit.most_positions) == (False, 4 * 512, 7 * KV_BLOCK)
    assert "KV cache of 2,048 positions, at most 896 with 4 lanes" in fit.lines[1]
    limited = engine("sparse_base", context=512, cache=7 * KV_BLOCK)
    fit = fit_of(limited, weights + rows + 2 * (1 + 7) * page, "gpu", 0, None)
    assert (fit.fits, fit.left, fit.positions) == (True, 0, 7 * KV_BLOCK)


@pytest.mark.slow
def test_report_is_kept_for_other_processes(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(folder / "cache"))
    first = report_on(engine(), SHAPES)
    assert first.good and first.fit is not None and first.fit.fits
    decode, copy = first.steps
    assert decode.certificate is not None and decode.certificate.holds and decode.turns == 1
    assert decode.floor_moved is not None and decode.moved > decode.floor_moved
    assert decode.tokens_per_second is not None and decode.floor_seconds is not None
    assert decode.tokens_per_second * decode.floor_seconds == pytest.approx(4)
    assert copy.floor_moved is None and copy.kernels > 0
    assert from_json(TargetReport, first.to_json()) == first

    report = report_on(engine(), SHAPES)
    assert report == replace(first, steps=tuple(replace(step, reused=True) for step in first.steps))
    monkeypatch.setattr(jax.stages.Lowered, "compile", refused)
    options: tuple[dict[str, Any], ...] = ({"target": "nvidia-h200"}, {"context": 128}, {"dtype": "bfloat16"})
    for other in options:
        with pytest.raises(AssertionError, match="compiled again"):
            report_on(engine(**other), SHAPES)


def test_blocks_of_the_cache_are_visited_and_further_passes_over_experts_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loops over blocks count all turns of a full context, further passes count none."""

    def kernel(name: str, loop: str | None, moved: int) -> ScheduledKernel:
        return ScheduledKernel(name, "fusion", "", "", moved, 0, moved, "bf16", 1, loop, ())

    over = "jit(step)/Moe/jit(expert_dot)/" + FURTHER_PASSES + "/while"
    kernels = kernel("once", None, 1), kernel("keys", "jit(step)/Attention/while", 10), kernel("pass", over, 1000)
    step: Any = SimpleNamespace(kernels=Kernels(kernels), certificate=None, kernel_resources=())
    keys: Any = jax.ShapeDtypeStruct((4, 32, 8 * KV_BLOCK, 8), "float32")
    for name, turns in (("nvidia-h100", 2), ("tpu-v5e", 8)):
        target = engine(target=name)
        monkeypatch.setattr(target, "example_arguments", lambda shape: (KVCache(keys, None),))
        report = step_report(target, DECODE, step, 8 * KV_BLOCK)
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
    shapes = PartShape("state", True, 2, 1), KEEP
    compiling(monkeypatch, "RESOURCE_EXHAUSTED: 83G exceeds 16G\nmore")
    report = report_on(engine(), shapes)
    assert not report.good and [bool(step.faults) for step in report.steps] == [True, False]
    assert report.steps[0].faults == ("XLA does not compile it for nvidia-h100: RESOURCE_EXHAUSTED: 83G exceeds 16G",)
    assert report.fit is not None and report.fit.padding == 0
    report = report_on(engine(), shapes)
    assert report.good and [step.reused for step in report.steps] == [False, True]


def test_products_without_tiles_are_left_to_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compiling(monkeypatch, "INTERNAL: Couldn't find output tile sizes that satisfy hlo", "INTERNAL: other")
    report = report_on(engine(), [DECODE])
    assert (
        compiled == [OPTIONS["gpu"], OPTIONS["gpu"] | {"xla_gpu_enable_triton_gemm": False}]
        and not report.steps[0].certificate
    )
    assert "INTERNAL: other" in report.steps[0].faults[0]


def test_mesh_has_the_devices_of_the_target() -> None:
    with pytest.raises(TargetError, match="nvidia-h100:2: expected a mesh of 2 devices, got one of 4"):
        engine(target="nvidia-h100:2", mesh={"data": 2, "model": 2})
    meshed = engine(target="nvidia-h100:2")
    assert meshed.placement.data == 2 and set(meshed.placement.local_devices) == set(jax.devices()[1:3])


@pytest.mark.parametrize(("target", "platform"), [("nvidia-h100", "cuda"), ("tpu-v5e", "tpu")])
def test_steps_are_exported_for_the_platform_of_the_target(
    target: str, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX exports them with all of its checks: it promises to keep every custom call."""
    for name in NO_TPU:
        monkeypatch.delenv(name, raising=False)
    exports, export = list[Any](), exported.jax_export.export

    def noted(*args: Any, **options: Any) -> Any:
        return lambda *types: exports.append(export(*args, **options)(*types)) or exports[-1]

    monkeypatch.setattr(exported.jax_export, "export", noted)
    step = engine("dense_interval", target).program(DECODE)
    text = step.export().text
    assert exports[0].platforms == (platform,) and text is not None
    assert "custom_call" not in text


@pytest.mark.parametrize("target", ["nvidia-h100", "tpu-v5e"])
def test_scatters_say_that_their_places_are_distinct(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA turns scatters with possible duplicates into compare-and-swap loops; counts may have duplicates."""
    for name in NO_TPU:
        monkeypatch.delenv(name, raising=False)
    base = engine("sparse_base", target)
    for shape in (DECODE, base.shape("generate", 4, 8), KEEP):
        step, _ = base.programs.step(shape)
        program = jax.make_jaxpr(step)(*base.example_arguments(shape))
        written = [eqn for eqn in ir.all_eqns(program.jaxpr) if eqn.primitive.name == "scatter"]
        shared = [ir.source_of(eqn) for eqn in written if not eqn.params["unique_indices"]]
        assert (written or shape is KEEP) and shared == []


@pytest.mark.slow
def test_progress_is_told_before_each_step(folder: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(folder / "cache"))
    events: list[tuple[int, str]] = []
    report_on(engine(), SHAPES, lambda count, name: events.append((count, name)))
    assert events == [(0, "generate 4x1 of 4"), (1, "keep a state of 4")]


CONFIG = ("--config", str(GOLDEN / "sparse_base" / "config.json"))


def test_floor_of_the_embedded_model() -> None:
    config = json.loads((demo.path() / "config.json").read_text())
    lm = hybridlm.load(demo.path(), lanes=1, compilation_cache=False)
    floor = floor_of(lm.engine, Shape("generate", 2, 1, 2), 129)
    assert floor is not None
    # two recurrent layers: 4 heads of 32 x 32, and 3 taps of 256 channels; one attention layer: 2 heads of 32
    state, token = 2 * 4 * (4 * 32 * 32 + 3 * 256), 2 * 2 * 32 * 4
    # the cache's block that is read, and the token that is written
    assert floor.moved == sum(array.nbytes for array in lm.params.values()) + 2 * (2 * state + (128 + 1) * token)
    assert floor.flops > 2 * 2 * config["vocab_size"] * config["hidden_size"]
