"""The decorator: one proof per shape, static value, placement and setting; stages; errors.

More than 300 lines: everything about one decorator.
"""

import pkgutil
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_settings import jax_settings

from hybridlm.compiler import stages
from ir_passes import (
    ContractError,
    ContractFault,
    IsolationError,
    Lane,
    LaneContract,
    Pool,
    Shared,
    compile_step,
    isolated,
    prove,
)
from ir_passes import prove_isolation as prove_only
from ir_passes.compile.compiled_step import CompiledStep
from ir_passes.compile.isolated import IsolatedStep

WIDTH = 4
CONTRACT = LaneContract((Shared(), Pool("s"), Lane()), {"y": Lane(), "pool": Pool("s")})


def plain(w, pool, x, scale=2.0):
    new = pool * 0.5 + x @ w * scale
    return {"y": x.sum(1) * scale, "pool": new}


def arguments(lanes: int = 3, dtype: Any = np.float32) -> tuple[Any, ...]:
    ones_value = lambda *shape: jnp.ones(shape, dtype)
    return ones_value(WIDTH, WIDTH), ones_value(lanes, WIDTH), ones_value(lanes, WIDTH)


def same(got: Any, expected: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, expected)


@pytest.fixture
def step() -> IsolatedStep:
    return isolated(CONTRACT, static_argnames="scale")(plain)


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that grows by one for each proof before the rewrites."""
    calls: list[Any] = []
    honest = pkgutil.resolve_name("ir_passes.proof.lane_proof.prove_jaxpr")

    def counted(*args: Any) -> Any:
        calls.append(args)
        return honest(*args)

    monkeypatch.setattr("ir_passes.proof.lane_proof.prove_jaxpr", counted)
    return calls


def test_the_same_shape_is_proved_once_and_a_new_one_once_more(step: IsolatedStep, proofs: list[Any]) -> None:
    for _ in range(3):
        same(step(*arguments()), plain(*arguments()))
    count = len(proofs)
    assert count and len(step.certificates) == 1
    for lanes in (5, 3, 5):
        same(step(*arguments(lanes)), plain(*arguments(lanes)))
    assert len(step.certificates) == 2 and len(proofs) == 2 * count
    assert [c.lanes for c in step.certificates] == [3, 5] and step.certificate.lanes == 5  # pyright: ignore[reportGeneralTypeIssues]


NEW: dict[str, Any] = {
    "a dtype": lambda: (arguments(dtype=jnp.bfloat16), {}),
    "a static value": lambda: (arguments(), {"scale": 3.0}),
    "a static value of another class": lambda: (arguments(), {"scale": 2}),
    "a static value by position": lambda: ((*arguments(), 4.0), {}),
    "an argument by name": lambda: (arguments()[:2], {"x": arguments()[2]}),
    "a device": lambda: (jax.device_put(arguments(), jax.devices()[1]), {}),
}


@pytest.mark.parametrize("make", NEW.values(), ids=NEW)
def test_is_compiled_anew_for(make: Any, step: IsolatedStep) -> None:
    step(*arguments(), scale=2.0)
    for _ in range(2):
        args, named = make()
        expected = plain(*args, **named)
        got = step(*make()[0], **named)
        same(jax.tree.map(np.float32, got), jax.tree.map(np.float32, expected))
        assert got["y"].dtype == expected["y"].dtype and got["y"].devices() == expected["y"].devices()
    assert len(step.certificates) == 2
    same(step(*arguments(), scale=2.0), plain(*arguments()))
    assert len(step.certificates) == 2


@pytest.mark.parametrize("name", ["jax_enable_x64", "jax_default_prng_impl", "jax_memory_fitting_level"])
def test_settings_of_a_program_are_part_of_its_key(name: str, step: IsolatedStep) -> None:
    value = {"jax_enable_x64": True, "jax_default_prng_impl": "rbg"}.get(name, "O1")
    first, second = arguments(), arguments()
    step(*first)
    with jax_settings(**{name: value}):
        step._called(second, {})
    assert len(step.certificates) == 2
    flags = [set(certificate.versions.flags) for certificate in step.certificates]
    assert flags[0] != flags[1]


@pytest.mark.parametrize("name", ["jax_debug_nans", "jax_debug_infs", "jax_disable_jit"])
def test_a_setting_under_which_no_step_is_certified_is_named(name: str, step: IsolatedStep) -> None:
    settings = arguments()
    with jax_settings(**{name: True}), pytest.raises(stages.SettingError, match=name):
        step(*settings)
    assert not settings[1].is_deleted() and step.certificates == ()


def reordered(w, pool, x):
    """The first result has the pool's shape and dtype, so JAX would reuse its bytes."""
    return x + w[:1], pool * 0.5 + x


FORMS: dict[str, Any] = {
    "results in the order of the program": (CONTRACT, plain, lambda: (arguments(), {})),
    "results in another order": (LaneContract(CONTRACT.inputs, (Lane(), Pool("s"))), reordered,
                                 lambda: (arguments(), {})),
    "static value": (CONTRACT, plain, lambda: (arguments(), {"scale": 3.0})),
    "argument by name": (CONTRACT, plain, lambda: (arguments()[:2], {"x": arguments()[2]})),
    "argument donated in part": (LaneContract(({"w": Shared(), "pool": Pool("s")}, Lane()), CONTRACT.outputs),
                                 lambda state, x: plain(state["w"], state["pool"], x),
                                 lambda: (({"w": arguments()[0], "pool": arguments()[1]}, arguments()[2]), {})),
}  # fmt: skip


@pytest.mark.parametrize(("contract", "fn", "settings"), FORMS.values(), ids=FORMS)
def test_later_calls_run_like_a_jitted_function(
    contract: LaneContract, fn: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line of Python is run for them."""
    step = isolated(contract, static_argnames="scale" if fn is plain else None)(fn)
    args, named = settings()
    step(*args, **named)
    looked_up: list[Any] = []
    honest = IsolatedStep._called
    monkeypatch.setattr(IsolatedStep, "_called", lambda *call: looked_up.append(call) or honest(*call))
    for _ in range(2):
        (args, named), (repeat, _) = settings(), settings()
        same(step(*args, **named), fn(*repeat, **named))
        arrays = [leaf for leaf in jax.tree.leaves((args, named)) if isinstance(leaf, jax.Array)]
        assert sum(array.is_deleted() for array in arrays) == 1 and not looked_up
    with pytest.raises((RuntimeError, ValueError), match="deleted"):  # XLA's words for a jitted function
        step(*args, **named)


def test_without_the_look_up_of_jax_calls_are_slower_and_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ir_passes.jaxpr.jax_private.dispatcher", lambda *_: None)
    step = isolated(CONTRACT, static_argnames="scale")(plain)
    for lanes, scale in ((3, 2.0), (5, 2.0), (3, 2), (3, 2.0)):
        same(step(*arguments(lanes), scale=scale), plain(*arguments(lanes), scale=scale))
    assert len(step.certificates) == 3


@pytest.mark.slow
def test_programs_stay_when_jax_forgets_its_own(step: IsolatedStep, proofs: list[Any]) -> None:
    step(*arguments())
    count = len(proofs)
    jax.clear_caches()
    same(step(*arguments()), plain(*arguments()))
    assert len(step.certificates) == 1 and len(proofs) == count


def test_arrays_of_numpy_are_arrays(step: IsolatedStep) -> None:
    w, pool, x = arguments()
    step(w, pool, x)
    same(step(np.asarray(w), jnp.ones_like(x), np.asarray(x)), plain(*arguments()))
    assert len(step.certificates) == 1


TRANSFORMED = {
    "jit": lambda step: jax.jit(step)(*arguments()),
    "vmap": lambda step: jax.vmap(step, in_axes=(0, None, None))(jnp.ones((2, WIDTH, WIDTH)), *arguments()[1:]),
    "grad": lambda step: jax.grad(lambda w: step(w, *arguments()[1:])["y"].sum())(arguments()[0]),
    "make_jaxpr": lambda step: jax.make_jaxpr(step)(*arguments()),
}


@pytest.mark.parametrize("traced", [False, True], ids=["at the first call", "later"])
@pytest.mark.parametrize("transform", TRANSFORMED.values(), ids=TRANSFORMED)
def test_refuses_to_be_part_of_another_program(transform: Any, traced: bool, step: IsolatedStep) -> None:
    if traced:
        step(*arguments())
    with pytest.raises(TypeError, match="plain is isolated and was called under a transformation"):
        transform(step)
    assert len(step.certificates) == traced
    same(jax.jit(step.__wrapped__)(*arguments()), plain(*arguments()))


def test_a_leak_raises_at_every_call_and_nothing_runs() -> None:
    def leaking(w, pool, x):
        return plain(w, pool, x[::-1])

    step = isolated(CONTRACT)(leaking)
    settings = arguments()
    for _ in range(2):
        with pytest.raises(IsolationError):
            step(*settings)
    assert not settings[1].is_deleted() and step.certificates == ()
    with pytest.raises(RuntimeError, match="leaking has not been called"):
        _ = step.certificate


def fault_of(about: str) -> Callable[[ContractError], bool]:
    return lambda error: [(fault.id, fault.about) for fault in error.faults] == [(ContractFault.ARGUMENTS, about)]


def test_errors_say_which_argument(step: IsolatedStep) -> None:
    with pytest.raises(ValueError, match=r"static argument 'scale': .*list \[2\]"):
        step(*arguments(), scale=[2])
    no_contracts: tuple[Any, ...] = (lambda x: x, (Shared(), Lane()), Lane())
    for no_contract in no_contracts:
        with pytest.raises(TypeError, match=r"contract: expected @isolated\(LaneContract\("):
            isolated(no_contract)
    with pytest.raises(ContractError, match=r"args\[1\]: expected one of Shared.*; write Lane\(\.\.\.\)"):
        isolated(LaneContract((Pool("s"), Lane), (Lane(), Pool("s"))))(lambda s, x: (x, s))(jnp.ones(3), jnp.ones(3))
    with pytest.raises(ContractError, match=r"next version of args\[0\]: expected its type, bfloat16\(3,\)"):
        pooled = LaneContract((Pool("s"), Lane()), Pool("s"))
        isolated(pooled)(lambda s, x: x)(jnp.ones(3, jnp.bfloat16), jnp.ones(3))
    with pytest.raises(ValueError, match="certify: expected one of"):
        isolated(CONTRACT, certify="maybe")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ContractError, check=fault_of("kwargs['bias']")):
        isolated(CONTRACT)(lambda w, pool, x, *, bias: plain(w, pool, x + bias))(*arguments(), bias=jnp.ones(()))
    with pytest.raises(ContractError, check=fault_of("args[3]")):
        isolated(CONTRACT)(plain)(*arguments(), 2.0)
    with pytest.raises(ContractError, check=fault_of("args")):
        isolated(CONTRACT)(lambda *two: two[1])(*arguments()[:2])
    with pytest.raises(ValueError, match="nothing"):
        isolated(CONTRACT, static_argnames="nothing")(plain)


def test_attributes_of_a_function_replace_no_method() -> None:
    def doubled(x):
        return x * 2

    doubled.lower = doubled.clear_cache = None  # type: ignore[attr-defined]  # as jax.pmap and others have them
    step = isolated(LaneContract((Lane(),), Lane()))(doubled)
    assert step(jnp.ones(3)).tolist() == [2.0, 2.0, 2.0] and step.certificate.holds
    step.clear_cache()
    assert step.lower(jnp.ones(3)).compile().certificate.holds


def test_keywords_have_separate_entries() -> None:
    contract = LaneContract(CONTRACT.inputs, CONTRACT.outputs, keywords={"bias": Shared(), "shift": Lane()})

    @isolated(contract)
    def step(w, pool, x, *, bias, shift):
        return plain(w, pool, x + bias + shift)

    shift = jnp.ones((3, WIDTH))
    same(step(*arguments(), bias=jnp.ones(()), shift=shift), plain(*arguments()[:2], jnp.full((3, WIDTH), 3.0)))  # pyright: ignore[reportCallIssue]
    assert step.certificate.contract[3].startswith("kwargs['bias']: Shared()")


def test_pools_of_one_argument_are_donated_in_part_by_name() -> None:
    entries = {"pool": Pool("s"), "table": Lane()}

    @isolated(LaneContract((Lane(),), (Lane(), Pool("s")), keywords={"state": entries}))
    def step(x, *, state):
        return state["table"] + x, state["pool"] + x

    state = {"pool": jnp.ones((3, 2)), "table": jnp.ones((3, 2))}
    for _ in range(2):
        y, state["pool"] = step(jnp.ones((3, 2)), state=state)
    assert y.tolist() == [[2.0, 2.0]] * 3 and state["pool"].tolist() == [[3.0, 3.0]] * 3


def test_threads_compile_once(step: IsolatedStep, proofs: list[Any]) -> None:
    threads = [threading.Thread(target=lambda: step(*arguments())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(step.certificates) == 1


def test_clear_cache_forgets(step: IsolatedStep) -> None:
    step(*arguments())
    step.clear_cache()
    assert step.certificates == () and "0 compiled" in repr(step)
    step(*arguments())
    assert len(step.certificates) == 1


def test_the_stages_have_the_names_of_jax(step: IsolatedStep) -> None:
    settings = arguments()
    jitted = jax.jit(plain, static_argnames="scale", donate_argnums=1)
    reference, traced = jitted.trace(*settings, scale=3.0), step.trace(*settings, scale=3.0)
    proved = traced.prove()
    lowered = step.lower(*settings, scale=3.0)
    compiled = lowered.compile()
    assert isinstance(compiled, CompiledStep) and not settings[1].is_deleted()
    for stage in (traced, proved, lowered, compiled):
        assert stage.in_tree == reference.in_tree and stage.out_tree == reference.out_tree
        assert stage.in_avals == reference.in_avals and stage.out_info == reference.out_info
        assert stage.args_info == reference.args_info and stage.fun_name == "plain" == reference.fun_name
    assert str(traced.jaxpr) == str(reference.jaxpr)
    assert proved.proof is not None and [p.name for p in proved.passes] == ["rebatch", "drop-dead"]
    assert "tf.aliasing_output" in lowered.as_text() and "plain" in str(lowered.compiler_ir())
    assert lowered.cost_analysis() and compiled.cost_analysis()
    assert compiled.memory_analysis().alias_size_in_bytes == settings[1].nbytes
    assert "HloModule" in (compiled.as_text() or "") and compiled.runtime_executable() is not None
    assert jax.tree.structure(compiled.input_shardings) == compiled.in_tree
    assert jax.tree.structure(compiled.output_shardings) == compiled.out_tree
    assert "TracedStep(plain, lanes=3)" == repr(traced)
    same(compiled(*settings), plain(*arguments(), scale=3.0))


def test_the_short_ways_are_the_stages(step: IsolatedStep) -> None:
    static = {"kwargs": {"scale": 3.0}, "static_argnames": "scale"}
    short = compile_step(plain, arguments(), CONTRACT, **static)
    assert short.certificate.fingerprints == step.lower(*arguments(), scale=3.0).compile().certificate.fingerprints
    by_place = compile_step(plain, (*arguments(), 3.0), CONTRACT, static_argnums=-1)
    assert by_place.certificate.fingerprints.hlo == short.certificate.fingerprints.hlo
    assert prove_only(plain, arguments(), CONTRACT, **static).lanes == 3


def test_a_program_that_is_traced_already() -> None:
    contract = LaneContract(CONTRACT.inputs, (Pool("s"), Lane()))  # in flattening order
    jaxpr = jax.make_jaxpr(plain)(*arguments())
    proved = prove(jaxpr, contract)
    assert proved.fun_name == "plain" and proved.in_tree == jax.tree.structure((arguments(), {}))
    pool, y = proved.lower().compile()(*arguments())
    same({"pool": pool, "y": y}, plain(*arguments()))
    saved = prove(jax.jit(plain, static_argnames="scale").trace(*arguments(), scale=3.0), CONTRACT)
    same(saved.lower().compile()(*arguments()), plain(*arguments(), scale=3.0))
    leak = jax.make_jaxpr(lambda w, pool, x: plain(w, pool, x[::-1]))(*arguments())
    with pytest.raises(IsolationError) as raised:
        prove(leak, contract)
    assert all("test_isolated.py" in violation.source for violation in raised.value.violations)
    with pytest.raises(TypeError, match="expected a jaxpr .*, got function"):
        prove(plain, contract)  # type: ignore[arg-type]  # wrong on purpose


def test_a_program_traced_inside_another_one_is_refused() -> None:
    def outer(captured):
        return prove(jax.jit(lambda w, pool, x: plain(w, pool, x + captured)).trace(*arguments()), CONTRACT)

    with pytest.raises(ValueError, match="was traced inside another trace"):
        jax.make_jaxpr(outer)(jnp.ones((3, WIDTH)))
