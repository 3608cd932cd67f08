"""CPU kernels for attention of few tokens under XLA: numbers, declarations, caches in place."""

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from calls_in_place import check_a_call_beside_is_found, check_declaration, check_in_place, paged_contract
from instruction_sets import instruction_sets
from jax.sharding import PartitionSpec
from paged_caches import by_lane, consecutive_pages, in_pages

from hybridlm.families import KVCache, LaneInfo, append_and_attend
from ir_passes import IsolationError, prove_isolation
from models import Devices
from models.ops.decode_attention_cpu import ATTENTION, KERNEL, LATENT_ATTENTION, AttentionInputs, decode_attention_cpu

pytestmark = pytest.mark.cpu_kernels

HERE = Devices(kernels="auto")
CONTEXT, BLOCKS = 256, 2
POSITIONS = (0, 5, 30, 31, 32, 127, 250, CONTEXT - 1)
"""Position of each lane's first token. The second lane is idle; the last tokens of the last one are past the end."""
KINDS = {"grouped": (6, 2, 16, 16), "odd": (3, 3, 19, 19), "latent": (5, 1, 24, 17)}
"""Heads, key/value heads, sizes of key and value."""
OWN_PAGES, PAGES = 1 + BLOCKS * len(POSITIONS), 23
CONTRACTS = {kind: paged_contract(ATTENTION, OWN_PAGES, values=kind != "latent") for kind in KINDS}
MOVED = np.random.default_rng(0).permutation(np.arange(1, PAGES))[: OWN_PAGES - 1].reshape(-1, BLOCKS).astype(np.int32)
"""Pages of each lane in another order, in a larger pool."""


IDLE, BUSY = 1, np.delete(np.arange(len(POSITIONS)), 1)
of: Any = AttentionInputs
"""The constructor without type checks."""


def inputs(kind: str, tokens: int, dtype: Any = jnp.float32) -> AttentionInputs:
    """Random lanes at different positions; padding and unwritten cache positions are NaN."""
    rng = np.random.default_rng(tokens)
    heads, kv_heads, size, value_size = KINDS[kind]
    lanes = len(POSITIONS)
    lengths = np.array([max(tokens - k % 3, 1) for k in range(lanes)], np.int32)
    lengths[1] = 0
    query, key = (rng.normal(size=(lanes, tokens, count, size)).astype(np.float32) for count in (heads, kv_heads))
    value = rng.normal(size=(lanes, tokens, kv_heads, value_size)).astype(np.float32)
    shape = lanes, kv_heads, CONTEXT
    caches = [rng.normal(size=(*shape, count)).astype(np.float32) for count in (size, value_size)]
    for lane, (length, position) in enumerate(zip(lengths, POSITIONS, strict=True)):
        for array in (query, key, value):
            array[lane, length:] = np.nan
        for array in caches:
            array[lane, :, position:] = np.nan
    keys, values = (jnp.asarray(in_pages(array), dtype) for array in caches)
    rest = (None, (keys, None)) if kind == "latent" else (jnp.asarray(value), (keys, values))
    index, pages = jnp.array(POSITIONS, jnp.int32), consecutive_pages(lanes, OWN_PAGES)
    return AttentionInputs(jnp.asarray(query), jnp.asarray(key), *rest, jnp.asarray(lengths), index, pages)


compiled_kernel = jax.jit(decode_attention_cpu, static_argnames=("value_size", "window", "instructions"))


def kernel(kind: str, operands: AttentionInputs, **settings: Any) -> Any:
    return compiled_kernel(operands, value_size=KINDS[kind][3], **settings)


def first_call(operands: AttentionInputs) -> Any:
    """Run a program that has not run yet: jax raises an error of a kernel as a ValueError from the second run on."""
    return jax.jit(partial(decode_attention_cpu, value_size=KINDS["grouped"][3]))(operands)


def by_page(operands: AttentionInputs) -> AttentionInputs:
    """Permute the pages in a larger pool of NaN; the idle lane has no page."""

    def pool(pages: jax.Array) -> jax.Array:
        empty = jnp.full((PAGES, *pages.shape[1:]), jnp.nan, pages.dtype)
        return empty.at[MOVED[BUSY].ravel()].set(
            pages[1:].reshape(-1, BLOCKS, *pages.shape[1:])[BUSY].reshape(-1, *pages.shape[1:])
        )

    table = np.where(np.arange(len(MOVED))[:, None] == IDLE, 0, MOVED)
    return operands._replace(caches=jax.tree.map(pool, operands.caches), pages=jnp.asarray(table))


def operation(
    kind: str, devices: Devices, operands: AttentionInputs, blocks: Any = BLOCKS, window: int | None = None
) -> Any:
    query, key, value, caches, lengths, positions, pages = operands
    valid = jnp.arange(operands.query.shape[1])[None] < lengths[:, None]
    info = LaneInfo(lengths, positions, valid, jnp.zeros(len(lengths), bool), blocks, pages=pages)
    return append_and_attend(query, key, value, KVCache(*caches), info, KINDS[kind][3], devices, window)


def same(item: Any, other: Any) -> None:
    for a, b in zip(jax.tree.leaves(item), jax.tree.leaves(other), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.each_value
@pytest.mark.parametrize("instructions", instruction_sets())
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_kernel_computes_attention(kind: str, dtype: Any, instructions: str) -> None:
    for tokens in (1, 3):
        operands = inputs(kind, tokens, dtype)
        result, caches = kernel(kind, operands, instructions=instructions)
        expected, updated = jax.jit(partial(operation, kind, Devices()))(operands)
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-6)
        same(caches, tuple(updated))
        assert np.isfinite(result).all()


@pytest.mark.each_value
@pytest.mark.parametrize("instructions", instruction_sets())
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [7, 32, 33, 129, 300])
def test_kernel_attends_within_a_window(window: int, kind: str, instructions: str) -> None:
    """Positions before the window may be NaN, and their pages those of no lane."""
    operands = inputs(kind, 3)
    expected, updated = jax.jit(partial(operation, kind, Devices(), window=window))(operands)
    result, caches = kernel(kind, operands, window=window, instructions=instructions)
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-6)
    same(caches, tuple(updated))
    unseen = np.maximum(np.array(POSITIONS) + 1 - window, 0)
    assert (unseen > 0).any() or window == 300

    def poisoned(pool: jax.Array) -> jax.Array:
        lanes = by_lane(pool, len(POSITIONS)).copy()
        for lane, count in enumerate(unseen):
            lanes[lane, :, :count] = np.nan
        return jnp.asarray(in_pages(lanes))

    table = np.asarray(operands.pages).copy()
    table[np.arange(BLOCKS)[None] < (unseen // 128)[:, None]] = 0
    hidden = operands._replace(caches=jax.tree.map(poisoned, operands.caches), pages=jnp.asarray(table))
    same(kernel(kind, hidden, window=window, instructions=instructions)[0], result)


@pytest.mark.each_value
@pytest.mark.parametrize("devices", [HERE, Devices()], ids=["kernel", "plain"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_pages_in_any_order(kind: str, dtype: Any, devices: Devices) -> None:
    """Pages without a lane keep their bits, and their NaN has no influence."""
    operands = inputs(kind, 3, dtype)
    pool = by_page(operands)
    (result, caches), (expected, expected_caches) = (
        jax.jit(partial(operation, kind, devices))(x) for x in (pool, operands)
    )
    np.testing.assert_array_equal(result, expected)
    pages = MOVED[BUSY].ravel()
    for initial, final, own_final in zip(*map(jax.tree.leaves, (pool.caches, caches, expected_caches)), strict=True):
        lanes = own_final[1:].reshape(-1, BLOCKS, *own_final.shape[1:])[BUSY]
        same(final, initial.at[pages].set(lanes.reshape(-1, *own_final.shape[1:])))


def test_tokens_without_a_page_are_not_written() -> None:
    """The null page keeps its bits in both forms; no other lane has pages here."""
    operands = by_page(inputs("grouped", 3))
    last = len(POSITIONS) - 1  # from the last position of the context on
    table = operands.pages.at[last].set(0)
    for devices in (HERE, Devices()):
        _, caches = jax.jit(partial(operation, "grouped", devices))(operands._replace(pages=table))
        _, written_caches = jax.jit(partial(operation, "grouped", devices))(operands)
        for initial, final, written in zip(
            *map(jax.tree.leaves, (operands.caches, caches, written_caches)), strict=True
        ):
            same(final, written.at[MOVED[last]].set(initial[MOVED[last]]))


@pytest.mark.parametrize(("place", "page", "message"), [
    ((0, 0), PAGES, "is on page"), ((6, 1), -1, "is on page"), ((0, 0), int(MOVED[2, 0]), "named twice"),
    ((7, 1), int(MOVED[5, 0]), "named twice"),
])  # fmt: skip
def test_wrong_page_tables_are_refused(place: tuple[int, int], page: int, message: str) -> None:
    operands = by_page(inputs("grouped", 2))
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(first_call(operands._replace(pages=operands.pages.at[place].set(page))))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_together_and_one_by_one(kind: str) -> None:
    tokens = 40  # more query rows than are computed together
    operands = inputs(kind, tokens)
    result, caches = kernel(kind, operands)
    cache = operands.caches
    for token in range(tokens):
        item = jax.tree.map(lambda x, token=token: x[:, token : token + 1], operands[:3])
        real = (operands.lengths > token).astype(jnp.int32)
        out, cache = kernel(kind, of(*item, cache, real, operands.positions + token, operands.pages))
        np.testing.assert_array_equal(out[:, 0], result[:, token])
    same(cache, caches)


@pytest.mark.parametrize("kind", KINDS)
def test_lanes_keep_their_bits(kind: str) -> None:
    """Bits alone, in a batch, and next to poisoned lanes are equal."""
    operands = inputs(kind, 3)
    expected, table = kernel(kind, operands), np.asarray(operands.pages)
    lanes = range(len(POSITIONS))
    for lane, other in itertools.product(lanes, (jnp.nan, jnp.inf)):
        poisoned = jax.tree.map(lambda x, lane=lane, other=other: x.at[lane].set(other), operands[:3])
        caches = jax.tree.map(lambda x, lane=lane, other=other: x.at[table[lane]].set(other), operands.caches)
        neighbours = np.delete(np.array(lanes), lane)
        out, pools = kernel(kind, of(*poisoned, caches, *operands[4:]))
        same(out[neighbours], expected[0][neighbours])
        pages = table[neighbours].ravel()
        same(*(jax.tree.map(lambda x, pages=pages: x[pages], item) for item in (pools, expected[1])))
    for lane in lanes:
        part = jax.tree.map(lambda x, lane=lane: x[lane : lane + 1], operands._replace(caches=()))
        out, pools = kernel(kind, part._replace(caches=operands.caches))
        same(out, expected[0][lane : lane + 1])
        same(*(jax.tree.map(lambda x, lane=lane: x[table[lane]], item) for item in (pools, expected[1])))


def test_attention_chooses_it() -> None:
    def calls(kind: str, operands: AttentionInputs, devices: Devices = HERE) -> list[str]:
        traced = str(jax.make_jaxpr(partial(operation, kind, devices))(operands, np.int32(2)))
        return [name for name in (ATTENTION, LATENT_ATTENTION) if f"target_name={name}\n" in traced]

    for tokens in (1, 40):
        assert calls("grouped", inputs("grouped", tokens)) == [ATTENTION]
        assert calls("latent", inputs("latent", tokens)) == [LATENT_ATTENTION]
        assert calls("grouped", by_page(inputs("grouped", tokens))) == [ATTENTION]
    operands = inputs("grouped", 1)
    for other in (Devices(), Devices(kernels="interpret"), Devices(platform="tpu", kernels="auto")):
        assert not calls("grouped", operands, other)
    keys, values = operands.caches
    stored = (jnp.pad(keys, ((0, 0),) * 3 + ((0, 1),)), values)
    for wrong in (
        operands._replace(caches=(keys.astype(jnp.float16),) * 2),
        operands._replace(caches=(keys.astype(jnp.bfloat16), values)),
        operands._replace(caches=stored),
    ):
        assert not KERNEL.supports(wrong, KINDS["grouped"][3])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["grouped", "latent"])
def test_derivatives_match_the_plain_form(kind: str) -> None:
    operands = jax.tree.map(jnp.nan_to_num, inputs(kind, 2))
    window = 40 if kind == "grouped" else None

    def loss(devices: Devices, blocks: Any, tokens: Any, caches: Any) -> Any:
        out, updated = operation(kind, devices, of(*tokens, caches, *operands[4:]), blocks, window)
        return jnp.sum(jnp.tanh(out)) + sum(jnp.sum(array**2) for array in jax.tree.leaves(updated))

    index = operands[:3], operands.caches
    derivatives = lambda devices, blocks, *index: jax.grad(partial(loss, devices, blocks), (0, 1))(*index)
    expected = jax.jit(partial(derivatives, Devices(), 2))(*index)
    for result in (
        jax.jit(partial(derivatives, HERE, 2))(*index),
        jax.jit(partial(derivatives, HERE))(np.int32(2), *index),
    ):
        for item, other in zip(*map(jax.tree.leaves, (result, expected)), strict=True):
            np.testing.assert_allclose(item, other, rtol=1e-4, atol=1e-5)


def test_a_mesh_is_left_to_xla() -> None:
    operands = inputs("grouped", 1)
    mesh = jax.make_mesh((2,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    heads, cache = PartitionSpec(None, None, "model"), PartitionSpec(None, "model")
    specs = of(heads, heads, heads, (cache, cache), PartitionSpec(), PartitionSpec(), PartitionSpec())
    split = jax.shard_map(
        lambda operands: operation("grouped", HERE, operands), mesh=mesh, in_specs=(specs,), out_specs=(heads, cache)
    )
    assert "ffi_call" not in str(jax.make_jaxpr(split)(operands))


def step(caches: Any, lengths: Any, pages: Any, rest: Any, value_size: int = 16) -> Any:
    return decode_attention_cpu(of(*rest[:3], caches, lengths, rest[3], pages), value_size)


def arguments(kind: str, tokens: int = 2) -> tuple[Any, ...]:
    *rest, caches, lengths, positions, pages = inputs(kind, tokens, jnp.bfloat16)
    return caches, lengths, pages, (*rest, positions)


@pytest.mark.parametrize("kind", KINDS)
def test_step_is_certified_and_in_place(kind: str) -> None:
    args, form = arguments(kind), partial(step, value_size=KINDS[kind][3])
    target = LATENT_ATTENTION if kind == "latent" else ATTENTION
    same(check_in_place(form, args, CONTRACTS[kind], target), jax.jit(form)(*args))


@pytest.mark.parametrize("kind", KINDS)
def test_tables_of_other_lanes_are_refused_by_the_proof(kind: str) -> None:
    args, size = arguments(kind), KINDS[kind][3]

    def shifted(caches: Any, lengths: Any, pages: Any, rest: Any) -> Any:
        return step(caches, lengths, jnp.roll(pages, 1, axis=0), rest, size)

    def computed(caches: Any, lengths: Any, pages: Any, rest: Any) -> Any:
        return step(caches, lengths, pages + 1, rest, size)

    for wrong in (shifted, computed):
        with pytest.raises(IsolationError):
            prove_isolation(wrong, args, CONTRACTS[kind])


def test_proof_believes_the_declaration_and_nothing_more() -> None:
    args, contract = arguments("grouped"), CONTRACTS["grouped"]
    always_busy = lambda caches, lengths, pages, rest: step(caches, jnp.maximum(lengths, 1), pages, rest)
    other_lanes = lambda caches, lengths, pages, rest: step(
        caches, lengths, pages, jax.tree.map(lambda x: x[::-1], rest)
    )

    def values_for_keys(caches: Any, lengths: Any, pages: Any, rest: Any) -> Any:
        out, updated = step(caches[::-1], lengths, pages, rest)
        return out, updated[::-1]

    def read_behind(caches: Any, lengths: Any, pages: Any, rest: Any) -> Any:
        out, updated = step(caches, lengths, pages, rest)
        return out + jnp.sum(caches[0][pages], axis=(1, 2, 3, 4), dtype=jnp.float32)[:, None, None, None], updated

    check_declaration(step, args, contract, ATTENTION, always_busy, other_lanes, values_for_keys, read_behind)


def test_audit_finds_a_call_that_does_not_write_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    check_a_call_beside_is_found(monkeypatch, step, arguments("grouped"), CONTRACTS["grouped"], ATTENTION)


def test_lengths_are_checked() -> None:
    operands = inputs("grouped", 2)
    for wrong in (-1, 3):
        lengths = operands.lengths.at[2].set(wrong)
        with pytest.raises(jax.errors.JaxRuntimeError, match="lane 2"):
            jax.block_until_ready(first_call(operands._replace(lengths=lengths)))
