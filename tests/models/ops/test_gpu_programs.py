"""Bytes that XLA's programs for an H100 move and keep, of the operations that have a form for GPUs; none is needed."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from card_kernels import CARDS, array, check_limits, kernels_on, operations_on
from device_kernels import SMALL, operations
from jax import lax
from jax.experimental import pallas as pl
from packed_weights import Form, weight_of

from hybridlm.compiler import targets
from hybridlm.families import KVCache, LaneInfo, attend, layer_conv
from ir_passes.targets import TargetError, read_target
from models import KV_BLOCK, Devices
from models.ops.expert_dot import expert_dot
from models.ops.expert_rows import MAX_ROUNDED_ROWS, matrix_reads, tile_rows
from models.ops.float32 import silu_gated
from models.ops.gpu_call import gpu_call
from models.ops.linear import joined_linear, linear
from models.ops.quantised_experts import experts_product
from models.ops.quantised_weight import QuantisedWeight
from models.ops.rms_norm_gpu import rms_norm

pytestmark = pytest.mark.target_cuda
STATES: dict[str, tuple[int, ...]] = {"short convolution": (2,)} | dict.fromkeys(
    ("attention", "latent attention", "experts", "filters", "product"), ()
)
"""Places of the states among the arrays of an operation, where it is not 5."""
FORMS = ("delta rule", "KDA", "SSD", "short convolution", "attention", "latent attention")
BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32
compiled = partial(operations_on, "nvidia-h100")


GPU = Devices(platform="gpu")


def paged(lanes: int, kv_heads: int, context: int, size: int) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Types of keys in pages, and of the page table."""
    blocks = context // KV_BLOCK
    return array(1 + lanes * blocks, kv_heads, KV_BLOCK, size, dtype=BF16), array(lanes, blocks, dtype=I32)


@pytest.mark.parametrize("rows", [64, 1024])
def test_rows_are_not_expanded_to_all_experts(rows: int) -> None:
    experts, out, inputs = 64, 256, 512
    weight = array(experts, out, inputs, dtype=BF16)
    scratch, result = compiled(
        lambda *args: expert_dot(*args, devices=GPU), array(rows, inputs), weight, array(rows, dtype=I32)
    )
    weight_bytes = 2 * experts * out * inputs
    assert scratch < weight_bytes, "rows for each expert, or weights in another order, are more"
    assert result.moved < 2 * weight_bytes


def test_gradients_do_not_expand_rows_to_all_experts() -> None:
    """`ragged_dot`'s gradient takes six times the bytes of the matrices' gradient."""
    rows, experts, out, inputs = 1024, 64, 256, 512
    run = lambda x, weight, expert: jnp.sum(expert_dot(x, weight, expert, devices=GPU))
    weight = array(experts, out, inputs, dtype=BF16)
    gradient = jax.grad(run, argnums=(0, 1))
    scratch, _ = compiled(gradient, array(rows, inputs), weight, array(rows, dtype=I32))
    assert scratch < 1.5 * 4 * experts * out * inputs, "the gradient of the matrices in float32"


def attended(lanes: int, kv_heads: int, groups: int, size: int, context: int) -> targets.Kernels:
    """Compile attention of one token of each lane over the pages of a cache."""
    rows, pages = paged(lanes, kv_heads, context, size)
    _, result = compiled(
        lambda query, key, value, index, valid, blocks, pages: attend(
            query, KVCache(key, value), index, valid, blocks, devices=GPU, pages=pages
        ),
        array(lanes, 1, kv_heads * groups, size), rows, rows, array(lanes, 1, dtype=I32),
        array(lanes, 1, dtype=jnp.bool_), array(dtype=I32), pages,
    )  # fmt: skip
    return result


@pytest.mark.parametrize(("groups", "size", "limit"), [(2, 128, 1.2), (4, 128, 1.35), (8, 128, 1.7), (4, 256, 1.2)])
def test_keys_and_values_of_many_lanes_are_read_where_they_lie(groups: int, size: int, limit: float) -> None:
    """Once each, beside scores, weights and sums of eight parts of the positions, four where values are wide."""
    lanes, kv_heads, context = 64, 2, 2048
    result = attended(lanes, kv_heads, groups, size, context)
    a_turn = 2 * 2 * lanes * kv_heads * 512 * size
    assert result.moved_in_a_turn < limit * a_turn
    assert result.moved < a_turn, "no cache is turned before the loop"


@pytest.mark.parametrize(("lanes", "blocks", "limit"), [(1, 64, 1.6), (8, 16, 1.3), (32, 4, 1.35)])
def test_keys_and_values_of_few_lanes_are_read_once(lanes: int, blocks: int, limit: float) -> None:
    """XLA splits a sum with few results in two, and reads and writes parts of it: 3.3 with turns of four blocks."""
    kv_heads, groups, size, context = 2, 8, 256, 1 << 17
    result = attended(lanes, kv_heads, groups, size, context)
    assert result.moved_in_a_turn < limit * 2 * 2 * lanes * kv_heads * blocks * KV_BLOCK * size


@cache
def cases() -> dict[str, Any]:
    return {name: rest for name, *rest in operations("gpu", {**SMALL, "lanes": 4, "context": 512, "prompt": 64})}


@pytest.mark.parametrize("target", ["nvidia-h100", "nvidia-a100"])
@pytest.mark.parametrize(
    "name", [f"{form}, {tokens}" for form in FORMS for tokens in (1, 5)] + ["experts, 32 rows", "product, 16 rows"]
)
def test_kernels_move_each_array_once(name: str, target: str) -> None:
    """Operands, results and what is prepared for the kernel; no array is turned, copied or expanded."""
    operation, arrays = cases()[name]
    types = jax.tree.map(lambda leaf: array(*leaf.shape, dtype=leaf.dtype), arrays)
    donated = STATES.get(name.partition(",")[0], (5,))
    scratch, result = operations_on(target, partial(operation, kernels="auto"), *types, donated=donated)
    assert any("_kernel" in kernel.op_name for kernel in result.kernels)
    results = jax.eval_shape(partial(operation, kernels="off"), *types)
    needed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((types, results)))
    assert result.moved < 1.5 * needed and scratch < needed


@pytest.mark.each_value
@pytest.mark.parametrize("target", CARDS)
@pytest.mark.parametrize(
    "name",
    [f"{form}, {tokens}" for form in FORMS for tokens in (1, 5)]
    + [f"{form}, 64" for form in (*FORMS[:3], *FORMS[4:])]
    + ["experts, 32 rows", "product, 16 rows", "filters, 4 rows"],
)
def test_kernels_keep_the_limits_of_each_card(name: str, target: str) -> None:
    """Threads, registers and spills by ptxas; XLA refuses more shared memory than the card has."""
    operation, arrays = cases()[name]
    check_limits(target, partial(operation, kernels="auto"), *arrays)


@pytest.mark.parametrize("target", CARDS)
def test_prompts_of_wide_heads_keep_the_limits_of_each_card(target: str) -> None:
    """8 x 256 tokens of Qwen3.5-35B-A3B: 64 rows of 256 fill the registers."""
    lanes, tokens, heads, kv_heads, size = 8, 256, 16, 2, 256
    rows, pages = paged(lanes, kv_heads, 4096, size)
    shapes = array(lanes, tokens, heads, size), rows, rows, array(lanes, tokens, dtype=I32)
    shapes += array(lanes, tokens, dtype=jnp.bool_), pages
    run = lambda query, key, value, index, valid, pages: attend(
        query, KVCache(key, value), index, valid, 32, devices=Devices(platform="gpu", kernels="auto"), pages=pages
    )
    (kernel,) = kernels_on(target, run, *shapes)
    assert kernel.faults() == ()


def wide_kernel(x: Any, weight: Any, out: Any) -> None:
    """Multiply 256 rows and columns, with three turns loaded ahead."""

    def add(turn: Any, total: Any) -> Any:
        rows, columns = (array[:, pl.ds(turn * 64, 64)] for array in (x, weight))
        return total + lax.dot_general(rows, columns, (((1,), (1,)), ((), ())), preferred_element_type=F32)

    out[...] = lax.fori_loop(0, x.shape[1] // 64, add, jnp.zeros(out.shape, F32))


@pytest.mark.parametrize(("target", "available"), [("nvidia-l4", "101,376"), ("nvidia-h100", "232,448")])
def test_a_kernel_with_too_much_shared_memory_is_named(target: str, available: str) -> None:
    spec, result = ((256, 1024), lambda _: (0, 0)), ((256, 256), lambda _: (0, 0))
    call = gpu_call(wide_kernel, (1,), [spec, spec], (result, array(256, 256)), warps=8, stages=5, interpret=False)
    matrix = array(256, 1024, dtype=BF16)
    with pytest.raises(TargetError, match=rf"shared memory .* has {available}.*wide_kernel.*kernels='off'"):
        operations_on(target, call, matrix, matrix)


def test_a_kernel_that_spills_is_found() -> None:
    """256 x 256 sums of float32 are 512 registers of each of 128 threads."""
    spec = (256, 256), lambda _: (0, 0)
    call = gpu_call(wide_kernel, (1,), [spec, spec], (spec, array(256, 256)), warps=4, interpret=False)
    matrix = array(256, 256, dtype=BF16)
    (kernel,) = kernels_on("nvidia-a100", call, matrix, matrix)
    assert (kernel.name, kernel.threads) == ("wide_kernel", 128) and kernel.spilled > 1024
    (fault,) = kernel.faults()
    assert fault == f"wide_kernel: {kernel.spilled:,} spilled bytes of a thread, expected at most 128"


@pytest.mark.parametrize("target", CARDS)
def test_attention_and_experts_compile_for_cards_with_little_shared_memory(target: str) -> None:
    """Shapes that ask for the most, where tiles have fewer rows, and 80 query rows, in tiles of 40 or 27."""
    lanes, context, GPU = 2, 512, Devices(platform="gpu", kernels="auto")
    latent = lambda query, key, index, valid, pages: attend(
        query, KVCache(key, None), index, valid, 4, 512, GPU, pages=pages
    )
    wide = lambda query, key, value, index, valid, pages: attend(
        query, KVCache(key, value), index, valid, 4, devices=GPU, pages=pages
    )
    index, valid = array(lanes, 1, dtype=I32), array(lanes, 1, dtype=jnp.bool_)
    (narrow, _), (wide_rows, pages) = paged(lanes, 1, context, 576), paged(lanes, 2, context, 256)
    cases = {
        "latent": (latent, array(lanes, 1, 32, 576), narrow, index, valid, pages),
        "wide": (
            wide, array(lanes, 4, 32, 256), wide_rows, wide_rows,
            array(lanes, 4, dtype=I32), array(lanes, 4, dtype=jnp.bool_), pages,
        ),
        "drafts": (
            wide, array(lanes, 5, 32, 256), wide_rows, wide_rows,
            array(lanes, 5, dtype=I32), array(lanes, 5, dtype=jnp.bool_), pages,
        ),
        "experts": (
            partial(expert_dot, devices=GPU), array(512, 256), array(16, 128, 256),
            array(512, dtype=I32),
        ),
    }  # fmt: skip
    chosen = set()
    with read_target(target).tracing():
        for name, (operation, *types) in cases.items():
            _, result = operations_on(target, operation, *types)
            if any("_kernel" in kernel.op_name for kernel in result.kernels):
                chosen.add(name)
    assert chosen == set(cases)


def test_small_operations_are_few() -> None:
    """A product with one output is a sum; rows are sorted by expert, multiplied and put back in their places."""
    item = partial(linear, devices=Devices(platform="gpu"))
    assert compiled(item, array(64, 2048), array(1, 2048, dtype=BF16))[1].count == 1
    rows, experts = 512, 256
    weight = array(experts, 256, 512, dtype=BF16)
    operands = array(rows, 512), weight, array(rows, dtype=I32)
    assert compiled(partial(expert_dot, devices=GPU), *operands)[1].count <= 6


def test_one_lane_has_as_many_operations_as_several() -> None:
    """XLA would split the norm of one row in two."""

    def normed(x: Any, y: Any, weight: Any) -> Any:
        return rms_norm((x, y), weight, 1e-6, 1.0, interpret=False)

    for lanes in (1, 2):
        x = array(lanes, 1, 2048)
        assert compiled(normed, x, x, array(2048))[1].count == 1


def test_a_convolution_of_one_token_reads_its_window_once() -> None:
    """Its rows are written and read once more between, and the state once more for idle lanes."""
    lanes, channels = 64, 3072

    def run(x, weight, state, lengths, fresh):
        info = LaneInfo(lengths, lengths, (lengths > 0)[:, None], fresh, 1)
        return layer_conv(x, weight, state, info, devices=Devices(platform="gpu"))

    state = array(lanes, 3, channels, dtype=BF16)
    x, weight = array(lanes, 1, channels), array(channels, 1, 4, dtype=BF16)
    each = array(lanes, dtype=I32), array(lanes, dtype=jnp.bool_)
    _, result = compiled(run, x, weight, state, *each, donated=(2,))
    assert result.moved < 1.1 * 2 * lanes * channels * (3 * 5 + 4) and result.count <= 3


PACKED: dict[str, Form] = {
    "int8": ("int8", False, False),
    "fp8-block": ("e4m3", False, False),
    "int4": ("int4", False, True),
    "nvfp4": ("e2m1", True, False),
    "Q4_K": ("int4", False, "offsets"),
}


def packed(shape: tuple[int, ...], groups: int, scheme: str) -> QuantisedWeight:
    """Types of a packed weight."""
    small = weight_of((*[1 for _ in shape[:-1]], shape[-1]), groups, PACKED[scheme])
    return jax.tree.map(lambda leaf: array(*shape[:-1], leaf.shape[-1], dtype=leaf.dtype), small)


PRODUCTS: dict[str, tuple[tuple[int, ...], str, bool]] = {
    "64 rows": ((64,), "", False), "64 rows, gated": ((64,), "", True), "64 rows of int8": ((64,), "int8", False),
    "prompts of fp8, gated": ((4, 256), "fp8-block", True), "prompts of nvfp4, gated": ((4, 256), "nvfp4", True),
}  # fmt: skip
"""Name -> rows, scheme, and whether gate and up are one kernel."""


@pytest.mark.each_value
@pytest.mark.parametrize("target", CARDS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_keep_the_limits_of_each_card(name: str, target: str) -> None:
    """An L4 has no shared memory for 64 rows of float32 in four stages, and no registers for 128 x 128 sums."""
    rows, scheme, gated = PRODUCTS[name]
    outputs, inputs = (1024, 2048) if scheme else (8192, 2048)
    groups = {"": 0, "int8": 1, "fp8-block": 16, "nvfp4": 128}[scheme]
    weight = packed((outputs, inputs), groups, scheme) if scheme else array(outputs, inputs, dtype=BF16)
    kernels = Devices(platform="gpu", kernels="auto")
    joined = partial(joined_linear, devices=kernels, joined=silu_gated, dtype=BF16)
    run = (lambda x, *weights: joined(x, weights)) if gated else partial(linear, devices=kernels)
    check_limits(target, run, array(*rows, inputs), *[weight] * (1 + gated))


@pytest.mark.parametrize("target", ["nvidia-l4", "nvidia-a100"])
def test_many_rows_of_packed_experts_spill_nothing(target: str) -> None:
    weight, rows = packed((64, 1024, 2048), 128, "nvfp4"), 16384
    run = partial(experts_product, devices=Devices(platform="gpu", kernels="auto"), gated=True)
    check_limits(target, run, array(rows, 2048), weight, array(rows, dtype=I32))


@pytest.mark.parametrize("rows", [1, 64, 2048])
@pytest.mark.parametrize("scheme", PACKED)
def test_packed_weights_are_multiplied_from_their_codes(scheme: str, rows: int) -> None:
    """No array of the weight's numbers is written: what moves are codes, scales, rows and results."""
    outputs, inputs = 2304, 768
    groups = {"int8": 1, "fp8-block": 6, "int4": 6, "nvfp4": 48, "Q4_K": 24}[scheme]
    weight = packed((outputs, inputs), groups, scheme)
    x = array(rows, inputs)
    scratch, result = compiled(lambda x, weight: linear(x, weight, Devices(platform="gpu", kernels="auto")), x, weight)
    operands = 4 * max(rows, 16) * (inputs + outputs)
    assert result.moved < 1.25 * (weight.nbytes + operands)
    assert scratch < operands and (scratch < outputs * inputs or rows == 2048)
    if rows < 2048:
        _, without = compiled(lambda x, weight: linear(x, weight, Devices(platform="gpu")), x, weight)
        assert without.moved > 2 * result.moved, "what XLA does without a kernel"


@pytest.mark.parametrize("rows", [64, 4096])
@pytest.mark.parametrize("scheme", ["fp8-block", "int4", "nvfp4"])
def test_packed_experts_are_multiplied_from_their_codes(scheme: str, rows: int) -> None:
    experts, outputs, inputs = 32, 512, 1024
    groups = {"fp8-block": 8, "int4": 8, "nvfp4": 64}[scheme]
    weight = packed((experts, outputs, inputs), groups, scheme)
    x, expert = array(rows, inputs), array(rows, dtype=I32)
    scratch, result = compiled(
        lambda *args: experts_product(*args, devices=Devices(platform="gpu", kernels="auto")), x, weight, expert
    )
    operands = 4 * rows * (inputs + outputs)
    read = weight.nbytes * matrix_reads(rows, tile_rows(rows, experts), experts) / experts
    assert result.moved < 1.1 * read + 3 * operands
    assert scratch < 2 * operands


@pytest.mark.parametrize("rows", [8, 64, 2048])
def test_experts_count_the_matrices_that_rows_read(rows: int) -> None:
    """Few rows read few of the matrices; tiles of one expert read its matrix again."""
    experts, outputs, inputs = 256, 64, 128
    operands = array(rows, inputs), array(experts, outputs, inputs, dtype=BF16), array(rows, dtype=I32)
    _, result = compiled(partial(expert_dot, devices=Devices(platform="gpu", kernels="auto")), *operands)
    (kernel,) = [kernel for kernel in result.kernels if "expert_rows_kernel" in kernel.op_name]
    row_bytes, sorted_bytes = rows * inputs * (4 if rows <= MAX_ROUNDED_ROWS else 2), 8 * rows
    matrices = matrix_reads(rows, tile_rows(rows, experts), experts)
    assert kernel.read == row_bytes + sorted_bytes + 2 * matrices * outputs * inputs
    assert matrices == {8: 8, 64: 64, 2048: 256 + 112}[rows]


@pytest.mark.parametrize("lanes", [1, 64])
def test_filters_read_the_logits_once_in_each_pass(lanes: int) -> None:
    """Each of the passes that find the cutoffs is one kernel, and no mask is written."""
    operation, arrays = cases()["filters, 4 rows"]
    types = [array(lanes, *leaf.shape[1:], dtype=leaf.dtype) for leaf in arrays]
    types[0] = array(lanes, 248320)
    _, result = compiled(partial(operation, kernels="auto"), *types)
    passes = sum(kernel.times for kernel in result.kernels if "filter_cutoffs_kernel" in kernel.op_name)
    assert passes == 17 and result.moved < (passes + 6) * 4 * types[0].size


@pytest.mark.parametrize("vocab", [32768, 248320])
def test_filters_without_a_kernel_read_the_logits_once_in_each_pass(vocab: int) -> None:
    """8 passes for top_k, 11 for top_p, the most likely token and the sampled one; no pass writes what it weighs."""
    operation, arrays = cases()["filters, 4 rows"]
    types = [array(64, *leaf.shape[1:], dtype=leaf.dtype) for leaf in arrays]
    types[0] = array(64, vocab)
    scratch, result = compiled(partial(operation, kernels="off"), *types)
    assert result.moved < 24 * 4 * types[0].size and scratch < types[0].size
