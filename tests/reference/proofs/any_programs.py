"""A function of f32[lanes, width] for each traceable form: dtypes, effects, nested programs, kernels.

They are composed at random; a composition need not keep lanes apart. More than 300 lines: a list.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from ir_passes import IsolationError, Lane, LaneContract, Pool, Shared, SlotMap
from ir_passes.compile.planned_step import plan_graph, trace
from ir_passes.compile.proving import prove_graph
from ir_passes.jaxpr.collectives import schedule_of
from ir_passes.jaxpr.fingerprint import fingerprint
from ir_passes.jaxpr.timing import new_seconds
from ir_passes.rewrites import DEFAULT_PASSES

LANES = WIDTH = 4
"""Equal sizes: an exchanged axis does not show in a length."""
F32 = jax.ShapeDtypeStruct((LANES, WIDTH), jnp.float32)
FLOATS = """
float4_e2m1fn float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz
float8_e8m0fnu bfloat16 float16 float32
""".split()
INTEGERS = "int2 int4 int8 int16 int32 uint2 uint4 uint8 uint16 uint32".split()
DTYPES = [*FLOATS, *INTEGERS, "complex64", "bool"]
GENERATORS = "threefry2x32 rbg unsafe_rbg".split()

Step = Callable[[Array], Array]
STEPS: dict[str, Step] = {}
"""Name -> function."""
AROUND: dict[str, Callable[[Step], Step]] = {}
"""Name -> what makes a function out of a function, with that as a program inside."""


def step(function: Step) -> Step:
    STEPS[function.__name__] = function
    return function


def around(function: Callable[[Step], Step]) -> Callable[[Step], Step]:
    AROUND[function.__name__] = function
    return function


def real(x: Array) -> Array:
    """Return the real part as float32."""
    return (x.real if x.dtype == jnp.complex64 else x).astype(jnp.float32)


def back(x: Array) -> Array:
    """Return any array as f32[lanes, width]."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return jnp.resize(real(x), (LANES, WIDTH))


def _of_dtype(name: str) -> None:
    dtype = jnp.dtype(name)

    def through(x):
        return real(x.astype(dtype))

    def captured(x):
        array, numbers = jnp.ones((LANES, WIDTH), dtype), np.zeros((WIDTH,), np.float32).astype(dtype)
        return jnp.where((array == jnp.ones((), dtype)) & (array != numbers), x, 0.0)

    def moved(x):
        y = jnp.stack([x.astype(dtype), jnp.zeros((LANES, WIDTH), dtype)])
        y = lax.dynamic_update_slice(y, jnp.ones((1, LANES, 1), dtype), (0, 0, 2))
        y = lax.pad(y[0].T.reshape(WIDTH, LANES), jnp.zeros((), dtype), [(0, 1, 0), (0, 0, 0)])[:-1]
        return real(jnp.where(y == y[::-1], y, y).T)

    def carried(x):
        carry = (x.astype(dtype), jnp.ones((), dtype), jnp.zeros((0, 3), dtype))
        (y, last, _), rows = lax.scan(lambda c, z: (c, (z, c[1])), carry, x.astype(dtype))
        return real(y) + real(last) + real(rows[0])

    for function in (through, captured, moved, carried):
        STEPS[f"{function.__name__} {name}"] = function


for _name in DTYPES:
    _of_dtype(_name)


def _of_arithmetic(name: str) -> None:
    dtype = jnp.dtype(name)

    def computed(x):
        y = x.astype(dtype)
        return jnp.maximum(y * y + jnp.ones((), dtype), y).astype(jnp.float32)

    STEPS[f"computed {name}"] = computed


for _name in (*INTEGERS, "bfloat16", "float16", "complex64"):
    if _name != "complex64":
        _of_arithmetic(_name)


def _of_keys(generator: str) -> None:
    size = 2 if generator.startswith("threefry") else 4
    numbers = np.arange((1 + LANES) * size, dtype=np.uint32).reshape(1 + LANES, size)
    # Of arrays of the host: nothing is compiled as tests are collected.
    key, keys = (jax.random.wrap_key_data(jnp.asarray(data), impl=generator) for data in (numbers[0], numbers[1:]))

    def captured_key(x):
        return x + jax.random.normal(key, x.shape)

    def captured_keys(x):
        return x + jax.vmap(lambda key: jax.random.uniform(key, (WIDTH,)))(keys)

    def seeded(x):
        seeds = x[:, 0].astype(jnp.int32)
        lane_keys = jax.vmap(lambda seed: jax.random.key(seed, impl=generator))(seeds)
        return x + jax.vmap(lambda lane_key: jax.random.normal(jax.random.clone(lane_key), (WIDTH,)))(lane_keys)

    def folded(x):
        lane_keys = jax.vmap(jax.random.fold_in, (None, 0))(key, x[:, 1].astype(jnp.uint32))
        return x + jax.vmap(lambda lane_key: jax.random.normal(lane_key, (WIDTH,)))(lane_keys)

    def words(x):
        data = jax.random.key_data(keys)
        wrapped = jax.random.wrap_key_data(data + x[:, :1].astype(jnp.uint32), impl=generator)
        return back(wrapped) + x

    def moved_keys(x):
        lane_keys = jnp.stack([keys, jnp.roll(keys, 1)])[0].reshape(2, 2).T.reshape(-1)
        lane_keys = jnp.where(x[:, 0] > 0, lane_keys, keys)[jnp.argsort(x[:, 1])]
        return (
            back(lane_keys.at[0].set(key))
            + back(jnp.concatenate([lane_keys, keys]))
            + back(lane_keys[:0].reshape(0)) * 0
        )

    def carried_keys(x):
        def body(carry, z):
            first, two = jax.random.split(carry[0])
            return (first, carry[1]), z + jax.random.normal(two, z.shape)

        (last, _), rows = lax.scan(body, (key, keys), x)
        return rows + lax.cond(x[0, 0] > 0, lambda: back(last), lambda: back(keys))

    def sampled(x):
        def one_lane(key, logits):
            a, b, c = jax.random.split(key, 3)
            drawn = jax.random.categorical(a, logits) + jax.random.bernoulli(b) + jax.random.randint(c, (), 0, 3)
            return logits + drawn + jax.random.gamma(a, 1.5) + jax.random.permutation(b, logits)

        return jax.vmap(one_lane)(keys, x)

    for function in (captured_key, captured_keys, seeded, folded, words, moved_keys, carried_keys, sampled):
        STEPS[f"{function.__name__} {generator}"] = function


for _name in GENERATORS:
    _of_keys(_name)


def doubled(x: Any) -> Any:
    return np.asarray(x) * 2


class Tripled:
    """A callback that is no function."""

    def __call__(self, x: Any) -> Any:
        return np.asarray(x) * 3


def _of_callbacks() -> None:
    functions = {
        "function": doubled,
        "lambda": lambda x: np.asarray(x) * 2,
        "partial": functools.partial(np.multiply, np.float32(2)),
        "builtin": np.abs,
        "object": Tripled(),
        "method": Tripled().__call__,
    }
    for name, function in functions.items():
        STEPS[f"pure_callback {name}"] = lambda x, f=function: jax.pure_callback(f, F32, x, vmap_method="sequential")
        STEPS[f"debug_callback {name}"] = lambda x, f=function: (jax.debug.callback(f, x), x)[1]
        for ordered in (False, True):
            STEPS[f"io_callback {name} {ordered}"] = lambda x, f=function, o=ordered: io_callback(f, F32, x, ordered=o)
    for ordered in (False, True):
        STEPS[f"print {ordered}"] = lambda x, o=ordered: (jax.debug.print("{x} {y}", x=x, y=3, ordered=o), x)[1]
        STEPS[f"no operands {ordered}"] = lambda x, o=ordered: (io_callback(lambda: None, None, ordered=o), x)[1]
    STEPS["keys to a callback"] = lambda x: (jax.debug.callback(doubled, jax.random.key_data(jax.random.key(0))), x)[1]


_of_callbacks()


@step
def foreign(x):
    attributes = {"stride": np.int32(2), "text": "a", "many": np.arange(3), "flag": True}
    return jax.ffi.ffi_call("any_target", F32)(x, **attributes)


def row_kernel(x_ref, out_ref):
    out_ref[...] = x_ref[...] * 2


def scoped_kernel(x_ref, out_ref):
    def body(scratch):
        scratch[...] = x_ref[...]
        out_ref[...] = scratch[...]

    pl.run_scoped(body, pltpu.VMEM((LANES, WIDTH), jnp.float32))


def scratch_kernel(x_ref, out_ref, scratch):
    scratch[...] = x_ref[...]
    out_ref[...] = scratch[...]


def prefetch_kernel(rows_ref, x_ref, out_ref):
    out_ref[...] = x_ref[...]


def nested_kernel(x_ref, out_ref):
    @pl.when(x_ref[0, 0] > 0)
    def _():
        out_ref[...] = lax.fori_loop(0, 3, lambda i, y: y + x_ref[i, :][None], x_ref[...])


def pipelined_kernel(x_ref, out_ref):
    spec = pl.BlockSpec((1, WIDTH), lambda i: (i, 0))
    pltpu.emit_pipeline(row_kernel, grid=(LANES,), in_specs=[spec], out_specs=[spec])(x_ref, out_ref)


def on_tpu() -> Any:
    """Pretend that there is a TPU: pipelines ask for its memory."""
    device = jax.sharding.AbstractDevice("TPU v5e", 1, "tpu")
    return jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("core",), (AxisType.Auto,), abstract_device=device))


ROW = pl.BlockSpec((1, WIDTH), lambda i: (i, 0))


def _of_kernels() -> None:
    everywhere = pl.BlockSpec(memory_space=pl.ANY)
    vmem = pltpu.VMEM((LANES, WIDTH), jnp.float32)
    kernels: dict[str, tuple[Any, dict[str, Any]]] = {
        "plain": (row_kernel, {}),
        "named": (row_kernel, {"name": "rows"}),
        "interpreted": (row_kernel, {"interpret": True}),
        "lambda": (lambda x_ref, out_ref: row_kernel(x_ref, out_ref), {}),
        "partial": (functools.partial(row_kernel), {}),
        "aliased": (row_kernel, {"input_output_aliases": {0: 0}}),
        "by rows": (row_kernel, {"grid": (LANES,), "in_specs": [ROW], "out_specs": ROW}),
        "run_scoped": (scoped_kernel, {}),
        "scratch": (scratch_kernel, {"scratch_shapes": [vmem]}),
        "nested": (nested_kernel, {}),
    }
    for name, (kernel, options) in kernels.items():
        STEPS[f"kernel {name}"] = lambda x, k=kernel, o=options: pl.pallas_call(k, out_shape=F32, **o)(x)

    def pipelined(x):
        with on_tpu():
            return pl.pallas_call(pipelined_kernel, in_specs=[everywhere], out_specs=everywhere, out_shape=F32)(x)

    STEPS["kernel emit_pipeline"] = pipelined

    def on_cores(x: Array) -> Any:
        with on_tpu():
            with warnings.catch_warnings():  # newer versions have another name for it, older ones this one
                warnings.simplefilter("ignore", DeprecationWarning)
                cores = pltpu.create_tensorcore_mesh("core", num_cores=1)
            return pl.kernel(row_kernel, F32, mesh=cores)(x)

    STEPS["kernel on cores"] = on_cores
    row = pl.BlockSpec((1, WIDTH), lambda i, rows: (rows[i], 0))
    grid = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(LANES,), in_specs=[row], out_specs=row)
    order = np.array([1, 0, 3, 2], np.int32)
    STEPS["kernel prefetch"] = lambda x: pl.pallas_call(prefetch_kernel, out_shape=F32, grid_spec=grid)(order, x)


_of_kernels()


@step
def empty_arrays(x):
    nothing = x[:, :0] @ jnp.zeros((0, WIDTH))
    return x + nothing + jnp.zeros((0, LANES, WIDTH)).sum(0) + jnp.concatenate([x[:0], x])


@step
def empty_carry(x):
    lax.scan(lambda carry, z: ((), z), (), x)
    return lax.fori_loop(0, 0, lambda i, y: y, x) + lax.scan(lambda c, z: (c, None), x, None, length=0)[0]


@step
def long_carry(x):
    """A window of rows: the last row's facts reach the first after several rounds."""
    window = (*(jnp.zeros_like(x) for _ in range(20)), x)
    return lax.scan(lambda c, _: ((*c[1:], c[-1]), None), window, None, length=20)[0][0]


@step
def rotated_carry(x):
    window = (x, x.T, x + 1, jnp.zeros_like(x))
    return lax.fori_loop(0, 5, lambda _, c: (*c[1:], c[0]), window)[0]


STEPS |= {
    "scalars": lambda x: (
        x
        + 1
        + 2.0
        + True
        + np.float32(3)
        + np.int8(1)
        + jnp.bfloat16(2).astype(jnp.float32)
        + np.array(4.0, np.float32)
    ),
    "weak_types": lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2.0), (0, x))[1],
    "associative": lambda x: lax.associative_scan(jnp.add, x, axis=1) + lax.associative_scan(jnp.maximum, x, axis=0),
    "composite": lambda x: lax.composite(lambda y, *, scale: y * scale, name="any.scaled")(x, scale=2.0),
    "grouped": lambda x: lax.ragged_dot(x, jnp.ones((2, WIDTH, WIDTH)), jnp.array([1, 3], jnp.int32)),
    "gradients": lambda x: (
        jax.grad(lambda y: jnp.sum(jnp.sin(y) * jnp.linalg.norm(y, axis=1)[:, None]))(x)
        + jax.jvp(jnp.tanh, (x,), (x,))[1]
    ),
    "by_platform": lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos),
    "batched_loop": lambda x: jax.vmap(lambda row: lax.while_loop(lambda y: y.sum() < 9, lambda y: y + 3, row))(x),
    "exported": lambda x: jax.export.export(jax.jit(jnp.sin))(F32).call(x),
    "checkpointed_names": lambda x: checkpoint_name(x, "kept") + jax.named_call(jnp.sin, name="sine")(x),
    "stacked_results": lambda x: lax.map(lambda row: (row, (), {"a": row.sum()}), x)[0] + jnp.float32(sum(x.shape)),
    "over_names": lambda x: jax.vmap(
        lambda row: row - lax.pmean(row, "lanes") + lax.axis_index("lanes"), axis_name="lanes"
    )(x),
    "reduced_over_names": lambda x: (
        jax.vmap(lambda row: lax.psum(row, "lanes"), axis_name="lanes", out_axes=None)(x)[:, None] + x
    ),
}


@step
def references(x):
    ref = jax.new_ref(x)
    ref[0] = x[1]
    ref[...] += 1.0
    counter = jax.new_ref(jnp.zeros((), jnp.int32))

    def body(i, _):
        counter[...] += 1
        ref[i] = ref[i] * 2
        return ()

    lax.fori_loop(0, LANES, body, ())
    return jax.freeze(ref) + counter[...]


@step
def references_in_a_scan(x):
    ref = jax.new_ref(jnp.zeros((WIDTH,)))

    def body(_, z):
        ref[...] += z
        return (), ref[...]

    return lax.scan(body, (), x)[1]


@step
def run_state(x):
    def body(refs):
        first, second = refs
        second[...] = first[...] * 2

    return pl.run_state(body)((x, jnp.zeros_like(x)))[1]


@step
def linear_solve(x):
    matrix = jnp.eye(WIDTH) * 2.0
    solve = lambda matvec, b: jnp.linalg.solve(matrix, b)
    return jax.vmap(lambda b: lax.custom_linear_solve(lambda v: matrix @ v, b, solve, symmetric=True))(x)


@step
def root(x):
    def solve(f, guess):
        return lax.fori_loop(0, 3, lambda _, y: y - f(y) / 2.0, guess)

    return lax.custom_root(lambda y: 2.0 * y - x, x, solve, lambda g, y: y / g(jnp.ones_like(y)))


@step
def kinds_of_reduction(x):
    a = lax.reduce(x, jnp.float32(0), lambda p, q: p + q * 2, (1,))
    b = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 1), "SAME")
    c = lax.reduce((x, x), (jnp.float32(0), jnp.float32(1)), lambda p, q: (p[0] + q[0], p[1] * q[1]), (1,))
    d = lax.reduce_precision(x, 5, 7) + lax.cummax(x, 1) + lax.cumlogsumexp(x, 0)
    return x + a[:, None] + b + c[0][:, None] + d + jnp.argmax(x, 1)[:, None] + lax.top_k(x, 2)[0].sum()


@step
def kinds_of_scatter(x):
    indices = jnp.array([1, 0, 2])
    y = (
        x.at[indices]
        .add(1.0)
        .at[indices]
        .multiply(2.0)
        .at[indices]
        .min(3.0)
        .at[:, indices]
        .max(0.0)
        .at[0, 1]
        .apply(jnp.sin)
    )
    return y.at[x[:, 0].astype(jnp.int32)].set(0.0, mode="drop").at[indices].get(mode="fill", fill_value=0).sum(0) + y


@step
def pooled(x):
    def most(y):
        return lax.reduce_window(y, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID").sum()

    return jax.grad(most)(x)


@step
def matrices(x):
    square = x[:, :LANES] @ x[:, :LANES].T + 10 * jnp.eye(LANES)
    vectors = jnp.linalg.eigh(square)[1] + jnp.linalg.cholesky(square) + jnp.linalg.qr(square)[0]
    return vectors @ x + jnp.linalg.svd(x, full_matrices=False)[2][:1] + jnp.linalg.inv(square).sum()


@step
def transforms(x):
    spectrum = jnp.fft.rfft(x, axis=1)
    return (
        jnp.fft.irfft(spectrum, n=WIDTH, axis=1)
        + spectrum.imag.sum()
        + lax.conv(x[None, None], x[None, None], (1, 1), "SAME")[0, 0]
    )


@step
def sorted_keys(x):
    keys, values = lax.sort((x[:, 0], jnp.arange(LANES)), num_keys=1)
    return x[values] + keys[:, None] + lax.sort(x, dimension=1)


@step
def special(x):
    y = (
        jax.scipy.special.betainc(1.0, 2.0, jax.nn.sigmoid(x))
        + lax.igamma(jnp.abs(x) + 1, jnp.abs(x))
        + lax.zeta(2.5, 1.0)
    )
    return (
        y + lax.nextafter(x, x + 1) + lax.population_count(x.astype(jnp.int32)).astype(jnp.float32) + lax.erf_inv(x / 9)
    )


@step
def raw_bits(x):
    _, bits = lax.rng_bit_generator(jnp.zeros(4, jnp.uint32), x.shape)
    return x + bits.astype(jnp.float32) + lax.rng_uniform(jnp.float32(0), jnp.float32(1), x.shape)


@step
def old_keys(x):
    key, other = jax.random.split(jax.random.PRNGKey(0))
    return x + jax.random.normal(key, x.shape) + jax.random.bits(other, x.shape).astype(jnp.float32)


@step
def bit_patterns(x):
    bytes_ = lax.bitcast_convert_type(x, jnp.uint8)
    return lax.bitcast_convert_type(bytes_, jnp.float32) + lax.bitcast_convert_type(x, jnp.int32).astype(jnp.float32)


@step
def no_tangents(x):
    _, tangent = jax.jvp(lambda y, n: (y * n, n)[0], (x, jnp.arange(WIDTH)), (x, np.zeros(WIDTH, jax.dtypes.float0)))
    return tangent


@step
def barriers(x):
    y, _ = lax.optimization_barrier((x, jnp.zeros((0,))))
    token = lax.create_token()
    return lax.optimization_barrier((y, token))[0]


@step
def tokens(x):
    token = lax.after_all(lax.create_token(), lax.create_token())
    return lax.optimization_barrier((token, x))[1]


@step
def scalar_branches(x):
    index = jnp.int32(x[0, 0])
    return lax.switch(index, [jnp.sin, jnp.cos, lambda y: y * 0 + index], x)


@step
def partitioned(x):
    @custom_partitioning
    def sine(y):
        return jnp.sin(y)

    sine.def_partition(
        partition=lambda mesh, args, out: None, infer_sharding_from_operands=lambda *a: None, sharding_rule="i j -> i j"
    )
    return sine(x)


def _mesh(size: int) -> Any:
    return jax.make_mesh((size,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:size])


@step
def exchanged(x):
    def local(y):
        y = y + lax.psum(y, "x") + lax.all_gather(y, "x").sum(0) + lax.axis_index("x")
        return lax.ppermute(y, "x", [(0, 1), (1, 0)]) + lax.pmax(y, "x")

    return jax.shard_map(local, mesh=_mesh(2), in_specs=PartitionSpec("x"), out_specs=PartitionSpec("x"))(x)


AROUND |= {
    "in_jit": lambda inner: jax.jit(inner),
    "in_scan": lambda inner: lambda x: lax.scan(lambda c, _: (inner(c), c[0]), x, None, length=2)[0],
    "in_scan_backwards": lambda inner: (
        lambda x: lax.scan(lambda c, z: (inner(c + z), None), x, jnp.zeros((3, WIDTH)), reverse=True, unroll=2)[0]
    ),
    "in_while": lambda inner: (
        lambda x: lax.while_loop(lambda c: c[1] < 2, lambda c: (inner(c[0]), c[1] + 1), (x, 0))[0]
    ),
    "in_while_of_values": lambda inner: lambda x: lax.while_loop(lambda c: c.sum() < 0, inner, x),
    "in_fori": lambda inner: lambda x: lax.fori_loop(0, x[0, 0].astype(jnp.int32), lambda i, y: inner(y) + i, x),
    "in_cond": lambda inner: lambda x: lax.cond(x[0, 0] > 0, inner, lambda y: y, x),
    "in_switch": lambda inner: lambda x: lax.switch(1, [lambda y: y, inner, jnp.sin], x),
    "in_remat": lambda inner: jax.checkpoint(inner),
    "in_composite": lambda inner: lambda x: lax.composite(inner, name="any.inner")(x),
    "in_vmap": lambda inner: lambda x: jax.vmap(inner)(jnp.stack([x, x + 1]))[0],
    "in_map": lambda inner: lambda x: lax.map(inner, jnp.stack([x, x + 1]), batch_size=2)[1],
    "in_no_jit": lambda inner: jax.named_call(inner, name="named"),
}


@around
def in_custom_jvp(inner):
    @jax.custom_jvp
    def function(x):
        return inner(x)

    function.defjvp(lambda primals, tangents: (function(*primals), tangents[0]))
    return lambda x: function(x)


@around
def in_custom_vjp(inner):
    @jax.custom_vjp
    def function(x):
        return inner(x)

    function.defvjp(lambda x: (function(x), None), lambda _, g: (g,))
    return lambda x: function(x)


@around
def in_custom_vmap(inner):
    @jax.custom_batching.custom_vmap
    def function(x):
        return inner(x)

    function.def_vmap(lambda size, batched, x: (jax.vmap(inner)(x), True))
    return lambda x: function(x)


@around
def in_shard_map(inner):
    # of one device, so that its part has the shapes of the whole
    return lambda x: jax.shard_map(
        inner, mesh=_mesh(1), in_specs=PartitionSpec("x"), out_specs=PartitionSpec("x"), check_vma=False
    )(x)


ROWS = 9
SLOTS = np.array([3, 1, 7, 5], np.int32)


def by_lanes(function: Step) -> tuple[Callable[..., Any], tuple[Any, ...], LaneContract]:
    """Return a step that applies the function to each lane."""
    return lambda x: (function(x),), (_drawn(LANES),), LaneContract((Lane(),), (Lane(),))


def by_pool(function: Step) -> tuple[Callable[..., Any], tuple[Any, ...], LaneContract]:
    """Return a step that applies the function to named pool rows of active lanes."""
    pool = Pool("p", dims=("slot", "feature"))
    contract = LaneContract((Lane(), pool, SlotMap("p", ROWS), Lane(role="length")), (Lane(), pool))

    def run(x, pool, slots, lengths):
        old = pool[slots]
        new = jnp.where(lengths[:, None] > 0, function(old + x), old)
        return new, pool.at[slots].set(new)

    return run, (_drawn(LANES), _drawn(ROWS), SLOTS, np.array([1, 0, 2, 1], np.int32)), contract


def by_row_pool(function: Step) -> tuple[Callable[..., Any], tuple[Any, ...], LaneContract]:
    """Return a step of the function on a row pool and shared numbers."""
    contract = LaneContract((Lane(), Pool("p"), Shared()), (Lane(), Pool("p")))
    return (
        lambda x, pool, shared: (x + pool, function(pool) + function(shared)),
        (_drawn(LANES), _drawn(LANES), _drawn(LANES)),
        contract,
    )


def by_keys(function: Step) -> tuple[Callable[..., Any], tuple[Any, ...], LaneContract]:
    """Return a step with a pool of keys that persists between calls."""
    contract = LaneContract((Pool("k"), SlotMap("k", ROWS), Lane()), (Lane(), Pool("k")))

    def run(pool, slots, x):
        old = jax.vmap(jax.random.split)(pool[slots])
        noise = jax.vmap(lambda key: jax.random.normal(key, (WIDTH,)))(old[:, 0])
        return function(x + noise), pool.at[slots].set(old[:, 1])

    return run, (jax.random.split(jax.random.key(0), ROWS), SLOTS, _drawn(LANES)), contract


CONTRACTS = (by_lanes, by_pool, by_row_pool, by_keys)


def _drawn(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).normal(size=(rows, WIDTH)).astype(np.float32)


def composed(rng: np.random.Generator, size: int) -> tuple[str, Step]:
    """A function of a few of these, some of them inside others, and its description."""
    names = [str(rng.choice(sorted(STEPS))) for _ in range(size)]
    parts, labels = [STEPS[name] for name in names], list(names)
    for _ in range(int(rng.integers(0, 3))):
        index, name = int(rng.integers(size)), str(rng.choice(sorted(AROUND)))
        parts[index], labels[index] = AROUND[name](parts[index]), f"{name}({labels[index]})"

    def run(x: Array) -> Array:
        for part in parts:
            x = part(x)
        return x

    return " > ".join(labels), run


def is_proved(step: Any, settings: tuple[Any, ...], contract: LaneContract) -> bool:
    """Return whether a step is proved; everything that reads a program reads this one."""
    program = jax.make_jaxpr(step)(*settings)
    assert fingerprint(program) == fingerprint(program)
    schedule_of(program)
    graph = trace(step, settings, contract, new_seconds())
    try:
        plan_graph(prove_graph(graph, DEFAULT_PASSES, "error", None, new_seconds()).graph)
    except IsolationError as error:
        assert all(violation.message and violation.remedy and violation.source for violation in error.violations)
        plan_graph(prove_graph(graph, DEFAULT_PASSES, "off", None, new_seconds()).graph)
        return False
    return True
