"""Every traceable program raises only the compiler's errors; proofs hold when run."""

import functools
from collections.abc import Iterator
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from any_programs import AROUND, CONTRACTS, LANES, ROWS, SLOTS, STEPS, Step, back, by_lanes, composed, is_proved
from jax import lax
from jax.experimental import pallas as pl
from jax.scipy import linalg, signal, special

from hybridlm.compiler import sanitizer
from ir_passes import (
    ContractError,
    IsolationError,
    Lane,
    LaneContract,
    Opaque,
    Pool,
    Shared,
    SlotMap,
    ViolationKind,
    prove_isolation,
)

ALL = {**STEPS, **{name: around(jnp.sin) for name, around in AROUND.items()}}
SEEDS, MORE = range(30), range(30, 3000)


@pytest.fixture(autouse=True)
def other_peoples_settings() -> Iterator[None]:
    """Programs of others are traced with JAX's own."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def drawn(seeds: range) -> Iterator[tuple[int, str, Step]]:
    """Compositions that JAX traces, with their seeds: it batches no ordered effect, for instance."""
    refused = 0
    for seed in seeds:
        message, function = composed(np.random.default_rng(seed), 2 + seed % 3)
        step, settings, _ = CONTRACTS[seed % len(CONTRACTS)](function)
        try:
            jax.make_jaxpr(step)(*settings)
        except Exception:  # whatever JAX refuses a program with
            refused += 1
            continue
        yield seed, message, function
    assert refused < 0.04 * len(seeds)


@pytest.mark.each_value
@pytest.mark.parametrize("by", CONTRACTS, ids=lambda by: by.__name__)
@pytest.mark.parametrize("name", ALL)
def test_everything_that_jax_traces_is_proved_or_refused(name, by) -> None:
    is_proved(*by(ALL[name]))


def test_the_catalogue_has_programs_that_are_proved_and_programs_that_are_refused() -> None:
    verdict = lambda name: is_proved(*by_lanes(ALL[name]))
    assert all(
        map(
            verdict,
            ("through int4", "captured float8_e5m2", "captured_keys threefry2x32", "in_scan", "kernel run_scoped"),
        )
    )
    refused = ("captured_keys rbg", "moved_keys threefry2x32", "kernel emit_pipeline", "references", "tokens")
    assert [name for name in refused if verdict(name)] == ["captured_keys rbg", "tokens"]


@pytest.mark.slow
def test_compositions_are_proved_or_refused() -> None:
    verdicts = []
    for seed, message, function in drawn(SEEDS):
        try:
            verdicts.append(is_proved(*CONTRACTS[seed % len(CONTRACTS)](function)))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {message}") from error
    assert any(verdicts) and not all(verdicts)


def by_any_declaration(rng: np.random.Generator) -> tuple[Any, tuple[Any, ...], LaneContract]:
    """A step with callbacks on some arrays, under a declaration that may not fit."""
    pool, slots = Pool("p"), SlotMap("p", ROWS)
    entries = (Lane(), Lane(1), Lane(2), Shared(), pool, Pool("r"), Pool("p", 1), Pool("p", dims=("a", "b")), slots)
    entries = (*entries, SlotMap("r", ROWS), SlotMap("p", ROWS, role="read"), Lane(role="length"))
    count, results = int(rng.integers(0, 4)), int(rng.integers(0, 3))
    inputs = tuple(entries[rng.integers(len(entries))] for _ in range(count))
    outputs = tuple(entries[rng.integers(6)] for _ in range(results))
    chosen, shapes = rng.integers(0, 9, count), rng.integers(0, 3, results)

    def function(*arrays: Any) -> Any:
        raise AssertionError("nothing is run here")

    def step(p, s, x, n, r, item):
        settings = (p, s, x, n, r, item, p[s], p[s[0]], s[1])
        result = (jax.ShapeDtypeStruct(like.shape, like.dtype) for like in (p, x, r))
        kinds = list(result)
        output = jax.pure_callback(function, tuple(kinds[k] for k in shapes), *(settings[k] for k in chosen))
        pools = [array for array in output if array.shape == p.shape]
        return sum([array for array in output if array.shape != p.shape], x), pools[0] if pools else p, r

    operands = (jnp.ones((ROWS, LANES)), SLOTS, jnp.ones((LANES, LANES)), np.ones(LANES, np.int32))
    operands = (*operands, jnp.ones((LANES, LANES)), jnp.float32(1))
    sides = (pool, slots, Lane(), Lane(role="length"), Pool("r"), Shared()), (Lane(), pool, Pool("r"))
    return step, operands, LaneContract(*sides, opaque={"function": Opaque(inputs, outputs)})


def test_any_declaration_is_taken_or_refused() -> None:
    results = {}
    for seed in range(150):
        step, settings, contract = by_any_declaration(np.random.default_rng(seed))
        try:
            prove_isolation(step, settings, contract)
            results[seed] = "proved"
        except (IsolationError, ContractError) as error:
            results[seed] = type(error).__name__
    assert set(results.values()) == {"proved", "IsolationError", "ContractError"}


@pytest.mark.parametrize("out_axes", [None, 0])
@pytest.mark.parametrize("reduce", [jax.lax.psum, jax.lax.pmax, jax.lax.pmin, jax.lax.pmean])
def test_reductions_over_the_axis_that_vmap_names_mix_lanes(reduce, out_axes) -> None:
    """With as many lanes as entries, the result has lane length but mixes lanes."""

    def over_lanes(x):
        mixed = jax.vmap(lambda row: reduce(row, "lanes"), axis_name="lanes", out_axes=out_axes)(x)
        return (x + (mixed[:, None] if out_axes is None else mixed),)

    def within_lanes(x):
        return (x - jax.vmap(lambda column: reduce(column, "columns"), 1, None, axis_name="columns")(x)[:, None],)

    settings, contract = (jnp.ones((LANES, LANES)),), LaneContract((Lane(),), (Lane(),))
    assert prove_isolation(within_lanes, settings, contract)
    with pytest.raises(IsolationError):
        prove_isolation(over_lanes, settings, contract)


def test_a_loop_whose_facts_would_not_settle_is_refused(monkeypatch) -> None:
    step, settings, contract = by_lanes(STEPS["long_carry"])
    assert prove_isolation(step, settings, contract)
    monkeypatch.setattr("ir_passes.proof.rules.control.MAX_ROUNDS", 0)
    with pytest.raises(IsolationError) as error:
        prove_isolation(step, settings, contract)
    assert {violation.kind for violation in error.value.violations} == {ViolationKind.CONTROL}


LIBRARIES = (jnp, jnp.linalg, jnp.fft, jax.nn, lax, lax.linalg, special, linalg, signal, jax.random)
CALLS = {
    "x": lambda f, x: f(x),
    "x, x": lambda f, x: f(x, x),
    "x, x, x": lambda f, x: f(x, x, x),
    "x, 1": lambda f, x: f(x, 1),
    "a row": lambda f, x: f(x[0]),
    "integers": lambda f, x: f(x.astype(jnp.int32)),
    "two of integers": lambda f, x: f(x.astype(jnp.int32), x.astype(jnp.int32)),
    "booleans": lambda f, x: f(x > 0),
    "booleans, x, x": lambda f, x: f(x > 0, x, x),
    "complex numbers": lambda f, x: f(x.astype(jnp.complex64)),
    "keys": lambda f, x: f(jax.random.split(jax.random.key(0), LANES)),
}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of functions that are called in ways that they are not made for
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__)
def test_the_functions_of_jax_are_proved_or_refused(library) -> None:
    labelled = LaneContract((Pool("p", dims=("a", "b")),), (Lane(),))
    settings, tried = (jnp.ones((LANES, LANES)),), 0
    for name, call in product(dir(library), CALLS):
        function = getattr(library, name)
        if name.startswith("_") or not callable(function) or isinstance(function, type) or name in ("save", "savez"):
            continue

        def step(x: Any, function: Any = function, call: str = call) -> Any:
            arrays = [leaf for leaf in jax.tree.leaves(CALLS[call](function, x)) if getattr(leaf, "size", 0)]
            return (sum(map(back, arrays), x),)

        try:
            jax.make_jaxpr(step)(*settings)
        except Exception:  # whatever JAX refuses a call with
            continue
        for contract in (LaneContract((Lane(),), (Lane(),)), labelled):
            tried += 1
            try:
                prove_isolation(step, settings, contract)
            except (IsolationError, ContractError):
                continue
            except Exception as error:
                raise AssertionError(f"{library.__name__}.{name}({call})") from error
    assert tried > 10


@pytest.mark.long
@pytest.mark.parametrize("seeds", [MORE[k : k + 100] for k in range(0, len(MORE), 100)], ids=str)
def test_more_compositions_are_proved_or_refused(seeds) -> None:
    for seed, message, function in drawn(seeds):
        step, settings, contract = CONTRACTS[seed % len(CONTRACTS)](function)
        try:
            is_proved(step, settings, contract)
            sanitizer.sanitize(step, settings, contract)
        except (ContractError, sanitizer.UntrackedError):
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}: {message}") from error


RUN = [
    name if name.startswith("kernel") else pytest.param(name, marks=pytest.mark.long)
    for name in ALL
    if name not in ("barriers", "tokens")  # XLA takes no loose token
]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", RUN)
def test_proved_claims_hold_in_runs(name, axis, monkeypatch) -> None:
    """Kernels are proved as written and run in interpret mode on CPUs."""
    contract = LaneContract((Lane(axis),), (Lane(axis),))
    step = lambda x: (ALL[name](x),)
    x = 3 * np.random.default_rng(5).normal(size=(LANES, LANES)).astype(np.float32)
    try:
        prove_isolation(step, (x,), contract)
    except IsolationError:
        return
    monkeypatch.setattr(pl, "pallas_call", functools.partial(pl.pallas_call, interpret=True))
    run = jax.jit(lambda x: step(x))  # traced anew
    array = np.asarray(run(x)[0])
    for lane in range(LANES):
        for change in (lambda row: row + 1.5, lambda row: -7 * row, lambda row: np.full_like(row, np.nan)):
            other = np.moveaxis(x.copy(), axis, 0)
            other[lane] = change(other[lane])
            final = np.asarray(run(np.moveaxis(other, 0, axis))[0])
            equal = np.moveaxis(final.view(np.int32) == array.view(np.int32), axis, 0)
            assert equal[np.arange(LANES) != lane].all()
