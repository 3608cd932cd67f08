"""Limits of GPU kernels: the card's shared memory, and wrapping array offsets."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packed_weights import weight_of

from hybridlm.families import KVCache, attend
from ir_passes.targets import named_targets, read_target
from models import Devices
from models.ops import gpu_call as gpu_call_module
from models.ops.decode_attention_gpu import KERNEL as ATTENTION
from models.ops.decode_attention_gpu import tile_rows, turn_size
from models.ops.gpu_call import gpu_call, shared_memory
from models.ops.kernels import Kernel
from models.ops.linear import linear
from models.ops.quantised_experts import experts_product
from models.ops.quantised_weight import QuantisedWeight
from models.ops.row_product_gpu import KERNEL as PRODUCT

SHARED_MEMORY: dict[str, int] = dict.fromkeys(
    ("nvidia-a6000", "nvidia-l4", "nvidia-l40", "nvidia-l40s", "nvidia-rtx4090"), 101_376
)
SHARED_MEMORY |= {"nvidia-a100": 166_912} | dict.fromkeys(("nvidia-h100", "nvidia-h200", "nvidia-b200"), 232_448)
"""GPU -> bytes of shared memory for a program instance."""


@pytest.mark.parametrize("name", [name for name in named_targets() if not name.startswith("tpu")])
def test_shared_memory_matches_the_target(name: str) -> None:
    with read_target(name).tracing():
        assert shared_memory() == SHARED_MEMORY[name]


@pytest.mark.parametrize(
    ("kind", "capability", "size"),
    [("NVIDIA H100 80GB HBM3", "9.0", 232_448), ("NVIDIA GB10", "12.1", 101_376), ("NVIDIA Card", "13.0", 101_376)],
)
def test_a_card_that_is_not_known_has_the_least_shared_memory(
    kind: str, capability: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_call_module, "_device_names", lambda: (kind, capability))
    assert shared_memory() == size


@pytest.mark.parametrize(("capability", "runs"), [("7.5", False), ("8.0", True), ("12.1", True), ("gfx942", False)])
def test_cards_without_products_of_bfloat16_run_the_plain_form(
    capability: str, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A T4 and AMD's cards; the interpreter needs no card."""
    monkeypatch.setattr(gpu_call_module, "_device_names", lambda: ("a card", capability))
    kernel = Kernel("a_kernel", "gpu", lambda: True)
    assert kernel.chosen(Devices(platform="gpu", kernels="auto")) == runs
    assert kernel.chosen(Devices(platform="gpu", kernels="interpret"))


def test_blocks_of_attention_follow_the_shared_memory_of_the_card() -> None:
    """XLA reported 188,416 bytes for 64 rows of 128, float32, 64 positions, two loads ahead."""
    sizes = {}
    for name in ("nvidia-l4", "nvidia-a100", "nvidia-h100"):
        with read_target(name).tracing():
            sizes[name] = turn_size(64, 128, 128, jnp.float32)
    assert sizes["nvidia-h100"] in [(64, 2), (32, 2)]
    assert sizes["nvidia-l4"] in [(16, 2), (16, 1)]


@pytest.mark.parametrize(("name", "rows", "tile"), [
    ("nvidia-l4", 32, 16), ("nvidia-l4", 24, 12), ("nvidia-rtx4090", 32, 16), ("nvidia-h100", 32, 32),
    ("nvidia-h100", 24, 24),
])  # fmt: skip
def test_tiles_of_queries_fit_the_card(name: str, rows: int, tile: int | None) -> None:
    """Latent rows of 576 on cards with 101,376 bytes have at most 16 rows a tile."""
    query = jax.ShapeDtypeStruct((8, 1, rows, 576), jnp.float32)
    key = jax.ShapeDtypeStruct((8, 1, 1024, 576), jnp.bfloat16)
    with read_target(name).tracing():
        assert tile_rows(rows, 576, 512, jnp.bfloat16) == tile
        assert ATTENTION.supports(query, key, None, 512) == (tile is not None)


@pytest.mark.parametrize(
    ("name", "rows", "tile"), [("nvidia-b200", 64, 32), ("nvidia-b200", 32, 32), ("nvidia-h100", 64, 64)]
)
def test_many_query_rows_do_not_fit_into_tensor_memory(name: str, rows: int, tile: int) -> None:
    """XLA for a B200 asks for 560 of 512 columns with 64 rows of 256."""
    with read_target(name).tracing():
        assert tile_rows(rows, 256, 256, jnp.bfloat16) == tile


@pytest.mark.parametrize(("numbers", "dtype", "supported"), [
    (1 << 31, np.int8, True),
    ((1 << 31) + 16, np.int8, False),
    (1 << 32, np.uint8, False),
    ((1 << 32) + 16, jnp.float8_e4m3fn, True),
    ((1 << 31) + 16, jnp.bfloat16, True),
])  # fmt: skip
def test_arrays_whose_offsets_wrap_are_refused(numbers: int, dtype: type, supported: bool) -> None:
    array = jax.ShapeDtypeStruct((numbers // 16, 16), dtype)
    for platform in ("gpu", "cpu"):
        kernel = Kernel("a_kernel", platform, lambda array: True)
        assert kernel.chosen(Devices(platform=platform, kernels="auto"), array) == (supported or platform == "cpu")
    gpu, rows = Devices(platform="gpu", kernels="auto"), jax.ShapeDtypeStruct((16, 16), jnp.float32)
    assert not PRODUCT.chosen(gpu, rows, array) or supported


@pytest.mark.parametrize(("bytes_", "kernel"), [(1 << 31, True), ((1 << 31) + (1 << 20), False), (1 << 32, False)])
def test_operations_over_arrays_whose_offsets_wrap_have_no_kernel(bytes_: int, kernel: bool) -> None:
    """Packed weights, packed experts and caches of one byte a number, between 2^31 and 2^32 bytes."""
    gpu, rows = Devices(platform="gpu", kernels="auto"), jax.ShapeDtypeStruct((16, 1024), jnp.float32)
    page = 2 * 128 * 128
    pool = jax.ShapeDtypeStruct((bytes_ // page, 2, 128, 128), jnp.float8_e4m3fn)
    query = jax.ShapeDtypeStruct((2, 1, 4, 128), jnp.float32)
    index, pages = (jax.ShapeDtypeStruct((2, size), jnp.int32) for size in (1, 4))

    def codes(*shape: int) -> QuantisedWeight:
        small = weight_of((1,) * (len(shape) - 1) + shape[-1:], 1, ("int8", False, False))
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*shape[:-1], leaf.shape[-1]), leaf.dtype), small)

    def attention(query: Any, pool: Any, index: Any, pages: Any) -> Any:
        return attend(query, KVCache(pool, pool), index, index >= 0, 4, devices=gpu, pages=pages)

    cases: dict[Any, tuple[Any, ...]] = {
        partial(linear, devices=gpu): (rows, codes(bytes_ // 1024, 1024)),
        partial(experts_product, devices=gpu): (
            rows, codes(bytes_ // (1 << 20), 1024, 1024), jax.ShapeDtypeStruct((16,), jnp.int32),
        ),
        attention: (query, pool, index, pages),
    }  # fmt: skip
    for operation, operands in cases.items():
        assert ("pallas_call" in str(jax.make_jaxpr(operation)(*operands))) == kernel


def test_one_file_has_the_backend_of_gpu_kernels(root: Path) -> None:
    """Triton's, which JAX has deprecated; another backend replaces this file."""
    sources = (path for folder in ("hybridlm", "ir_passes", "models") for path in (root / folder).rglob("*.py"))
    names = re.compile(r"^\s*(?:from|import) .*\b(?:triton|mosaic_gpu)\b", re.MULTILINE)
    users = [path.relative_to(root).as_posix() for path in sources if names.search(path.read_text(encoding="utf-8"))]
    assert users == ["models/ops/gpu_call.py"]


@pytest.mark.parametrize("warps", [64, 3])
def test_more_threads_than_a_card_has_are_refused(warps: int) -> None:
    with pytest.raises(ValueError, match=f"too_wide_kernel: {warps} warps"):
        gpu_call(too_wide_kernel, (1,), [], [], warps=warps, interpret=True)


def too_wide_kernel(out: jax.Array) -> None:
    """Not run."""


@pytest.mark.parametrize("sizes", [(100, 128), (128, 100)])
def test_blocks_that_reach_beyond_an_array_are_refused(sizes: tuple[int, int]) -> None:
    """The interpreter pads arrays; XLA compiles reads and writes of foreign memory without a word."""
    spec = (None, 64), lambda block: (0, block)
    operand, result = (jax.ShapeDtypeStruct((3, size), jnp.float32) for size in sizes)
    with pytest.raises(ValueError, match=r"too_wide_kernel: blocks of .*64\) do not divide an array of \(3, 100\)"):
        jax.eval_shape(gpu_call(too_wide_kernel, (2,), [spec], (spec, result), interpret=False), operand)
