"""Pallas kernels of JAX as steps: proved from the inside, or refused with a declaration.

docs/tables/proof-tables.md has the list. A kernel is traced as a user calls it, and never runs.
"""

import importlib
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import ir_passes
from ir_passes import (
    Assumption,
    ComputedGrid,
    IsolationError,
    Lane,
    LaneContract,
    Note,
    Packed,
    PageTable,
    Pool,
    Shared,
    ViolationKind,
    prove_isolation,
)


def shipped(name: str) -> Any:
    """A module of kernels; JAX deprecates some of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module(f"jax.experimental.pallas.ops.{name}")


attention, decode_attention, layer_norm = map(shipped, ("gpu.attention", "gpu.decode_attention", "gpu.layer_norm"))
rms_norm, softmax, gpu_paged = map(shipped, ("gpu.rms_norm", "gpu.softmax", "gpu.paged_attention"))
ragged_dot = shipped("gpu.ragged_dot_mgpu").ragged_dot
flash_attention, matmul = map(shipped, ("tpu.flash_attention", "tpu.matmul"))
gmm = shipped("tpu.megablox").gmm
tpu_paged = shipped("tpu.paged_attention.paged_attention_kernel")
ragged = shipped("tpu.ragged_paged_attention.kernel")
splash = shipped("tpu.splash_attention.splash_attention_kernel")
splash_masks = shipped("tpu.splash_attention.splash_attention_mask")

LANES, HEADS, SIZE, CONTEXT = 3, 2, 128, 256
PAGES, TOKENS, WIDE = 12, 16, 4
"""Pages of a pool, tokens of a page, pages of a lane."""
GROUPED = LaneContract((Lane(), Shared(), Shared()), (Lane(),))
Use = tuple[Callable[..., Any], tuple[Any, ...], LaneContract]


def array(*shape: int, dtype: Any = jnp.float32) -> Any:
    return jnp.zeros(shape, dtype)


def per_lane(fn: Callable[..., Any], *args: Any, shared: tuple[int, ...] = ()) -> Use:
    """A function of arrays of lanes; some of them are weights."""
    entries = tuple(Shared() if k in shared else Lane() for k in range(len(args)))
    return lambda *args: (fn(*args),), args, LaneContract(entries, (Lane(),))


def paged(fn: Callable[..., Any], pages: int, *shape: int) -> Use:
    """Attention of a token over the pages of its lane, for a given page dimension."""
    table, pool = PageTable("kv", size=PAGES), Pool("kv", axis=pages)
    contract = LaneContract((Lane(), pool, pool, Lane(), table), (Lane(),))
    args = array(LANES, HEADS, SIZE), array(*shape), array(*shape), array(LANES, dtype=jnp.int32)
    return lambda *args: (fn(*args),), (*args, array(LANES, WIDE, dtype=jnp.int32)), contract


def attended(*heads_and_tokens: int) -> tuple[Any, ...]:
    return (array(LANES, *heads_and_tokens, SIZE),) * 3


def normed(norm: Callable[..., Any], channels: int) -> Use:
    return per_lane(norm, array(LANES, 1, channels), array(channels), array(channels), shared=(1, 2))


def grouped(grid: ComputedGrid | None = None, tiles: int = 1, begins: bool = False, **options: Any) -> Use:
    """Rows of lanes sorted by expert; the host knows how many each has.

    Args:
        tiles: number along the channels.
        begins: True if the kernel begins with an array of zeros.
    """

    def step(rows: Any, experts: Any, sizes: Any) -> Any:
        zeros = {"existing_out": array(16, SIZE)} if begins else {}
        return (gmm(rows, experts, sizes, tiling=(8, SIZE, SIZE), **zeros, **options),)

    inner = tiles * SIZE
    experts = array(4, SIZE, inner) if options.get("transpose_rhs") else array(4, inner, SIZE)
    contract = replace(GROUPED, opaque={} if grid is None else {"kernel": grid})
    return step, (array(16, inner), experts, array(4, dtype=jnp.int32)), contract


def grouped_on_gpus() -> Use:
    def step(rows: Any, experts: Any, sizes: Any) -> Any:
        sizes_of_blocks = {"block_m": 64, "block_n": 64, "block_k": 64, "grid_block_n": 1}
        return (ragged_dot(rows, experts, group_sizes=sizes, max_concurrent_steps=2, **sizes_of_blocks),)

    half = partial(array, dtype=jnp.float16)
    return step, (half(SIZE, SIZE), half(4, SIZE, SIZE), array(4, dtype=jnp.int32)), GROUPED


def mixed_batch() -> Use:
    def step(q: Any, pool: Any, lengths: Any, table: Any, begins: Any, number: Any) -> Any:
        result = ragged.ragged_paged_attention(
            q, pool, lengths, table, begins, number, num_kv_pages_per_block=2, num_queries_per_block=8,
            vmem_limit_bytes=1 << 24,
        )  # fmt: skip
        return (result,)

    contract = LaneContract(
        (Packed(), Pool("kv"), Lane(), PageTable("kv", size=PAGES), Packed(role="cu_seqlens"), Shared()), (Packed(),)
    )
    ints = partial(array, dtype=jnp.int32)
    q, pool = array(16, HEADS, SIZE), array(PAGES, TOKENS, 2 * HEADS, SIZE)
    return step, (q, pool, ints(LANES), ints(LANES, WIDE), ints(LANES + 1), ints(1)), contract


def sparse() -> Use:
    mask = splash_masks.MultiHeadMask([splash_masks.CausalMask((CONTEXT, CONTEXT))] * HEADS)
    return per_lane(jax.vmap(splash.make_splash_mha_single_device(mask)), *attended(HEADS, CONTEXT))


USES: dict[str, Callable[[], Use]] = {
    "gpu.softmax": lambda: per_lane(softmax.softmax, array(LANES, 100)),
    "gpu.rms_norm": lambda: normed(rms_norm.rms_norm, 256),
    "gpu.rms_norm, 100 channels": lambda: normed(rms_norm.rms_norm, 100),
    "gpu.layer_norm": lambda: normed(layer_norm.layer_norm, 256),
    "gpu.layer_norm, 100 channels": lambda: normed(layer_norm.layer_norm, 100),
    "gpu.attention": lambda: per_lane(
        lambda q, k, v: attention.mha(q, k, v, None, causal=True), *attended(CONTEXT, HEADS)
    ),
    "gpu.decode_attention": lambda: per_lane(
        lambda q, k, v, n: decode_attention.gqa(q, k, v, kv_seq_len=n), array(LANES, 16, SIZE),
        array(LANES, 2048, 1, SIZE), array(LANES, 2048, 1, SIZE), array(LANES, dtype=jnp.int32),
    ),
    "gpu.paged_attention": lambda: paged(
        lambda q, k, v, n, t: gpu_paged.paged_attention(q, k, v, t, n, k_splits=1), 1, 1, PAGES, TOKENS, SIZE
    ),
    "gpu.paged_attention, 2 splits": lambda: paged(
        lambda q, k, v, n, t: gpu_paged.paged_attention(q, k, v, t, n, k_splits=2), 1, 1, PAGES, TOKENS, SIZE
    ),
    "gpu.ragged_dot_mgpu": grouped_on_gpus,
    "tpu.matmul": lambda: per_lane(
        partial(matmul.matmul, block_shape=(8, 128), block_k=128), array(16, 256), array(256, SIZE), shared=(1,)
    ),
    "tpu.flash_attention": lambda: per_lane(flash_attention.flash_attention, *attended(HEADS, CONTEXT)),
    "tpu.splash_attention": sparse,
    "tpu.paged_attention": lambda: paged(
        partial(tpu_paged.paged_attention, pages_per_compute_block=2), 1, 1, PAGES, TOKENS, SIZE
    ),
    "tpu.ragged_paged_attention": mixed_batch,
    "tpu.megablox": grouped,
    "tpu.megablox, rows of no group": lambda: grouped(ComputedGrid()),
    "tpu.megablox, existing_out": lambda: grouped(ComputedGrid(), begins=True),
    "tpu.megablox, declared": lambda: grouped(ComputedGrid(written=True)),
    "tpu.megablox, transposed": lambda: grouped(ComputedGrid(written=True), 2, transpose_rhs=True),
    "tpu.megablox, 40 tiles": lambda: grouped(ComputedGrid(), 40, begins=True),
}  # fmt: skip
DECLARED = {
    "gpu.ragged_dot_mgpu": "nothing is known of body",
    "tpu.paged_attention": "a store to an operand whose memory no result takes",
    "tpu.ragged_paged_attention": "a semaphore whose index is not shown to be in bounds",
    "tpu.megablox": "the computed length of a kernel's grid",
    "tpu.megablox, rows of no group": "uninitialized",
}
"""Kernels that cannot be read or proved, with the reason; users declare them."""
LEAKS = {"tpu.ragged_paged_attention": "a sequence without positions leaves its pages to the next one"}
"""Kernels that are rightly refused, with the leak (test_leak_of_ragged_attention.py)."""
if jax.__version_info__ < (0, 12):  # its running sums were results, before they were scratch
    DECLARED["tpu.splash_attention"] = "steps of grid axis 1 write one block"

TYPED = ["gpu.ragged_dot_mgpu", "tpu.paged_attention", "tpu.ragged_paged_attention"]
"""Kernels with their declaration in the error."""


FAULTS = {ViolationKind.OPAQUE, ViolationKind.UNINITIALIZED, ViolationKind.BOUNDS}


@pytest.fixture(autouse=True)
def as_jax_promotes() -> Iterator[None]:
    """JAX's own kernels add numbers of different dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("name", [name for name in USES if name not in DECLARED])
def test_kernel_is_proved(name: str) -> None:
    assert any(note.id == Note.KERNEL_READ.value for note in prove_isolation(*USES[name]()).notes)


@pytest.mark.parametrize("name", DECLARED)
def test_kernel_wants_a_declaration(name: str) -> None:
    with pytest.raises(IsolationError, match=DECLARED[name]) as error:
        prove_isolation(*USES[name]())
    assert {violation.kind for violation in error.value.violations} <= FAULTS


@pytest.mark.parametrize("name", TYPED)
def test_the_declaration_of_an_unreadable_kernel_can_be_typed(name: str) -> None:
    step, args, contract = USES[name]()
    with pytest.raises(IsolationError) as error:
        prove_isolation(step, args, contract)
    (violation,) = error.value.violations
    code = re.search(r"opaque=({.*})\)", violation.remedy)
    assert code is not None
    declared = replace(contract, opaque=eval(code[1], dict(vars(ir_passes))))
    assert Assumption.OPAQUE in [statement.id for statement in prove_isolation(step, args, declared).assumed]


def test_the_declaration_of_a_computed_grid_can_be_typed() -> None:
    step, args, contract = USES["tpu.megablox"]()
    with pytest.raises(IsolationError) as error:
        prove_isolation(step, args, contract)
    length, unwritten = error.value.violations
    code = re.search(r"opaque=({.*})\)", length.remedy)
    assert code is not None and "ComputedGrid(written=True)" in unwritten.remedy
    declared = eval(code[1], dict(vars(ir_passes)))
    (name,) = declared
    with pytest.raises(IsolationError) as error:
        prove_isolation(step, args, replace(contract, opaque=declared))
    assert [violation.kind for violation in error.value.violations] == [ViolationKind.UNINITIALIZED]
    proof = prove_isolation(step, args, replace(contract, opaque={name: ComputedGrid(written=True)}))
    assert {Assumption.COMPUTED_GRID, Assumption.WRITTEN_RESULTS} <= {statement.id for statement in proof.assumed}


OF_OTHERS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "rows": lambda rows, experts, sizes: (rows[::-1], experts, sizes),
    "sizes": lambda rows, experts, sizes: (rows, experts, sizes + (rows[:4, 0] > 0)),
    "experts": lambda rows, experts, sizes: (rows, experts + rows[0, 0], sizes),
}
"""Arguments of a grouped product of other lanes."""


@pytest.mark.parametrize("changed", OF_OTHERS)
@pytest.mark.parametrize("name", ["tpu.megablox, declared", "tpu.megablox, existing_out"])
def test_a_declared_grid_still_refuses_other_lanes(name: str, changed: str) -> None:
    step, args, contract = USES[name]()
    with pytest.raises(IsolationError) as error:
        prove_isolation(lambda *args: step(*OF_OTHERS[changed](*args)), args, contract)
    assert ViolationKind.CROSS_LANE in {violation.kind for violation in error.value.violations}


def test_a_typed_declaration_still_refuses_a_neighbours_pages() -> None:
    step, args, contract = USES["tpu.paged_attention"]()
    with pytest.raises(IsolationError) as error:
        prove_isolation(step, args, contract)
    code = re.search(r"opaque=({.*})\)", error.value.violations[0].remedy)
    assert code is not None
    declared = replace(contract, opaque=eval(code[1], dict(vars(ir_passes))))
    of_next = lambda q, k, v, lengths, table: step(q, k, v, lengths, jnp.roll(table, 1, axis=0))
    with pytest.raises(IsolationError):
        prove_isolation(of_next, args, declared)


RAGGED: dict[str, Callable[..., tuple[Any, ...]]] = {
    "tokens": lambda q, pool, lengths, table, begins, number: (q[::-1], pool, lengths, table, begins, number),
    "pages": lambda q, pool, lengths, table, begins, number: (q, pool, lengths, jnp.roll(table, 1, 0), begins, number),
    "lengths": lambda q, pool, lengths, table, begins, number: (q, pool, lengths[::-1], table, begins, number),
    "number": lambda q, pool, lengths, table, begins, number: (q, pool, lengths, table, begins, lengths[:1]),
    "begins": lambda q, pool, lengths, table, begins, number: (
        q, pool, lengths, table, jnp.minimum(begins + 1, 16), number
    ),
    "ends": lambda q, pool, lengths, table, begins, number: (
        q, pool, lengths, table, jnp.concatenate([begins[1:], begins[-1:]]), number
    ),
}  # fmt: skip
"""Arguments of ragged paged attention of other lanes."""


@pytest.mark.parametrize("changed", RAGGED)
def test_a_declared_kernel_for_packed_tokens_refuses_arguments_of_other_lanes(changed: str) -> None:
    step, args, contract = USES["tpu.ragged_paged_attention"]()
    declared = replace(contract, opaque={"ragged_paged_attention_kernel": declaration_of(step, args, contract)})
    assert prove_isolation(step, args, declared).assumed
    with pytest.raises(IsolationError):
        prove_isolation(lambda *args: step(*RAGGED[changed](*args)), args, declared)


def declaration_of(step: Any, args: Any, contract: LaneContract) -> Any:
    """The typed declaration of the one unreadable kernel."""
    with pytest.raises(IsolationError) as error:
        prove_isolation(step, args, contract)
    code = re.search(r"opaque=({.*})\)", error.value.violations[0].remedy)
    assert code is not None
    (declaration,) = eval(code[1], dict(vars(ir_passes))).values()
    return declaration


def test_a_neighbours_pages_are_seen() -> None:
    """A correct kernel, in a step with another lane's table or length."""
    step, args, contract = USES["gpu.paged_attention"]()
    of_next = lambda q, k, v, lengths, table: step(q, k, v, lengths, jnp.roll(table, 1, axis=0))
    with pytest.raises(IsolationError) as error:
        prove_isolation(of_next, args, contract)
    assert not {violation.kind for violation in error.value.violations} <= FAULTS


def test_every_use_is_listed(root: Path) -> None:
    page = (root / "docs" / "tables" / "proof-tables.md").read_text()
    assert [name for name in USES if f"`{name.split(',')[0]}`" not in page] == []
