"""A decoder whole and cut over devices by its own description, in equal steps."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from filled import filled
from flax import nnx
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P
from tiny_variants import variant

from hybridlm.families import StateArray
from models import Decoder, DecoderConfig, Devices, Family, MtpDecoder, Segment, ShardedDim, family_of
from models.decoder.decoder import lane_info

LANES, CONTEXT, BLOCKS = 4, 300, 3
PREFILL, VERIFIED = 9, 3
LENGTHS = np.array([9, 4, 0, 1], np.int32)
"""Lengths of the first step; the lane without tokens begins in the second."""
COUNTED = np.array([3, 1, 0, 2], np.int32)
"""Tokens of the verifying step that count."""
Axes = tuple[int, int, int]


class Tiny(NamedTuple):
    """A tiny model of a family."""

    family: Family
    config: DecoderConfig


class Steps(NamedTuple):
    """Results of `scenario`'s steps: a prompt in two pieces, a token, verified drafts.

    Attributes:
        hidden, logits: of each step.
        states: after each step, leaves in order.
    """

    hidden: list[Any]
    logits: list[Any]
    states: list[list[Any]]


def tiny(name: str, head: bool = False, **fields: Any) -> Tiny:
    """A variant with divisible sizes: a vocabulary of 64, and given fields."""
    text = {**variant(name).config, "vocab_size": 64, **fields}
    family = family_of(text)
    if head:
        assert family.with_head is not None
        family = family.with_head
    return Tiny(family, family.read_config(text))


def random_model(model: Tiny, seed: int = 0) -> Decoder:
    """The whole model with random parameters, so that every part matters."""
    rng = np.random.default_rng(seed)

    def value(name: str, shape: tuple[int, ...]) -> np.ndarray:
        array = rng.uniform(0.2, 1, shape) if len(shape) == 1 else rng.normal(size=shape) / shape[-1] ** 0.5
        return array.astype(np.float32)

    return filled(lambda: model.family.build(model.config, nnx.Rngs(0)), value)


def mesh_of(axes: Axes) -> Mesh:
    """A mesh of so many devices along `data`, `model` and `expert`."""
    devices = np.array(jax.devices()[: np.prod(axes)]).reshape(axes)
    return Mesh(devices, ("data", "model", "expert"), axis_types=(AxisType.Auto,) * 3)


def spread(array: np.ndarray, cuts: Sequence[ShardedDim], devices: Devices) -> np.ndarray:
    """Concatenate shares along every cut dimension: contiguous slices are shares."""
    for cut in cuts:
        count = devices.along(cut.axis)
        index = np.concatenate([np.arange(cut.size)[s] for device in range(count) for s in cut.slices(device, count)])
        array = np.take(array, index, axis=cut.dim)
    return array


def joined(array: np.ndarray, cut: ShardedDim | None, devices: Devices) -> np.ndarray:
    """Invert `spread`; units on several devices come from the last."""
    if cut is None:
        return array
    count = devices.along(cut.axis)
    index = np.concatenate([np.arange(cut.size)[s] for device in range(count) for s in cut.slices(device, count)])
    full = np.zeros(array.shape[: cut.dim] + (cut.size,) + array.shape[cut.dim + 1 :], array.dtype)
    np.moveaxis(full, cut.dim, 0)[index] = np.moveaxis(array, cut.dim, 0)
    return full


def with_null_pages(leaf: np.ndarray, array: StateArray, data: int) -> np.ndarray:
    """Give the pages of each part of the lanes a null page of their own, of the whole pool; other rows stay."""
    if not array.grows:
        return leaf
    return np.concatenate([page for part in np.split(leaf[1:], data) for page in (leaf[:1], part)])


def without_null_pages(leaf: np.ndarray, array: StateArray, data: int) -> np.ndarray:
    """Invert `with_null_pages`; every null page has kept its bits."""
    if not array.grows:
        return leaf
    parts = np.split(leaf, data)
    for part in parts:
        np.testing.assert_array_equal(part[0], parts[0][0])
    return np.concatenate([parts[0][:1], *(part[1:] for part in parts)])


def spec(cuts: Sequence[ShardedDim], devices: Devices, lanes: int = 1) -> P:
    """Place of each dimension; axes of one device are not named."""
    dims: dict[int, str] = {cut.dim: cut.axis for cut in cuts if devices.along(cut.axis) > 1}
    if lanes > 1:
        dims[0] = "data"
    return P(*(dims.get(dim) for dim in range(max(dims, default=-1) + 1)))


def scenario(model: Decoder, state: Any, tokens: Any, blocks: Any) -> Steps:
    """Steps of every kind in sequence; a head drafts at the end."""
    first, second, item, drafts = tokens
    results = jnp.zeros_like(first[:, 0])
    hidden, logits, states = [], [], []

    def keep(out: Any, state: Any) -> None:
        hidden.append(out)
        logits.append(model.logits(out))
        states.append(jax.tree.leaves(state))

    lengths = first[:, -1]
    out, state = model(first[:, :-1], lengths, results, state, blocks)
    keep(out, state)
    results = results + lengths
    lengths = jnp.full_like(lengths, second.shape[1])
    out, state = model(second, lengths, results, state, blocks)
    keep(out, state)
    results = results + lengths
    out, state = model(item, jnp.ones_like(lengths), results, state, blocks)
    keep(out, state)
    results = results + 1
    counted, drafts = drafts[:, -1], drafts[:, :-1]
    out, saved = model(drafts, jnp.full_like(lengths, VERIFIED), results, state, blocks, verifying=True)
    state = model.commit(saved, lane_info(drafts, counted, results, blocks), state)
    if isinstance(model, MtpDecoder):
        head = state[-1]
        results = results + counted
        info = lane_info(item, jnp.ones_like(lengths), results, blocks)
        out, _ = model.mtp_forward(item, head.hidden[:, None], info, head.layer)
    keep(out, state)
    return Steps(hidden, logits, states)


def operands(vocab: int) -> tuple[np.ndarray, ...]:
    """Tokens of the steps; last columns give the counts."""
    rng = np.random.default_rng(1)
    first, second, item, drafts = (rng.integers(vocab, size=(LANES, n)) for n in (PREFILL, 2, 1, VERIFIED))
    first, drafts = np.c_[first, LENGTHS], np.c_[drafts, COUNTED]
    return tuple(array.astype(np.int32) for array in (first, second, item, drafts))


def one_token(model: Decoder, state: Any, tokens: Any, blocks: Any) -> Steps:
    """A token of each lane, from the state that is given."""
    item = tokens[2]
    out, state = model(item, jnp.ones_like(item[:, 0]), jnp.full_like(item[:, 0], 7), state, blocks)
    return Steps([out], [model.logits(out)], [jax.tree.leaves(state)])


def _another(leaf: Any, rng: np.random.Generator) -> np.ndarray:
    """Random numbers in the place of `leaf`, tokens for integers."""
    if jnp.issubdtype(leaf.dtype, jnp.integer):
        return rng.integers(0, 64, leaf.shape).astype(leaf.dtype)
    return rng.normal(size=leaf.shape).astype(np.float32)


def used_rows(model: Decoder) -> Any:
    """Rows as earlier sequences may have left them."""
    rng = np.random.default_rng(2)
    return jax.tree.map(lambda leaf: _another(leaf, rng), model.init_state(LANES, CONTEXT, jnp.float32))


def on_one_device(model: Decoder, steps: Callable[..., Steps] = scenario) -> Steps:
    """The steps of the whole model."""
    graph, params = nnx.split(model)
    run = jax.jit(lambda params, *operands: steps(nnx.merge(graph, params), *operands))
    return jax.device_get(run(params, used_rows(model), operands(model.config.vocab_size), jnp.int32(BLOCKS)))


def on_devices(
    model: Decoder,
    tiny: Tiny,
    axes: Axes,
    steps: Callable[..., Steps] = scenario,
    recut: Callable[[ShardedDim], ShardedDim] = lambda cut: cut,
) -> Steps:
    """Run the same steps on mesh shares and join the results.

    Args:
        model: the whole model.
        tiny: its source.
        axes: devices along `data`, `model` and `expert`.
        steps: `scenario` or `one_token`.
        recut: function of the cuts before their use.
    """
    data, devices = axes[0], Devices(*axes[1:])
    share = nnx.eval_shape(lambda: tiny.family.build(tiny.config.shard(devices), nnx.Rngs(0)))
    graph = nnx.graphdef(share)
    cuts = {path: tuple(map(recut, dim)) for path, dim in model.sharded_dims().items()}
    params, param_specs = [], []
    flat: list[tuple[Any, Any]] = list(nnx.to_flat_state(nnx.state(model, nnx.Param)))
    for path, variable in flat:
        params.append((path, variable.replace(spread(np.asarray(variable[...]), cuts.get(path, ()), devices))))
        param_specs.append((path, variable.replace(spec(cuts.get(path, ()), devices))))
    params, param_specs = nnx.from_flat_state(params), nnx.from_flat_state(param_specs)
    arrays = jax.tree.leaves(model.state_arrays())
    state_cuts = [() if array.sharded_dim is None else (array.sharded_dim,) for array in arrays]
    lanes = P("data") if data > 1 else P()
    tree = jax.tree.structure(model.state_arrays())
    state_specs = [spec(cuts, devices, data) for cuts in state_cuts]
    leaves = zip(jax.tree.leaves(used_rows(model)), arrays, strict=True)
    rows = [with_null_pages(leaf, array, data) for leaf, array in leaves]
    state = [spread(leaf, cuts, devices) for leaf, cuts in zip(rows, state_cuts, strict=True)]
    vocabulary = spec((ShardedDim(2, "model", ()),), devices, data)
    run = lambda params, *operands: steps(nnx.merge(graph, params), *operands)
    count = 1 if steps is one_token else 4
    stepped = jax.shard_map(
        run,
        mesh=mesh_of(axes),
        in_specs=(param_specs, jax.tree.unflatten(tree, state_specs), (lanes,) * 4, P()),
        out_specs=Steps([lanes] * count, [vocabulary] * count, [state_specs] * count),
        check_vma=True,
    )
    result = jax.device_get(
        jax.jit(stepped)(params, jax.tree.unflatten(tree, state), operands(tiny.config.vocab_size), jnp.int32(BLOCKS))
    )
    states = [
        [
            joined(without_null_pages(leaf, array, data), array.sharded_dim, devices)
            for leaf, array in zip(leaves, arrays, strict=True)
        ]
        for leaves in result.states
    ]
    return result._replace(states=states)


def contiguous(cut: ShardedDim) -> ShardedDim:
    """The mistake: several parts cut as if they were one."""
    return ShardedDim(cut.dim, cut.axis, (Segment(cut.size, cut.size),)) if len(cut.segments) > 1 else cut


class OtherUnits(ShardedDim):
    """A mistake: units on other devices than their computation."""

    def slices(self, device: int, devices: int) -> list[slice]:
        result, start = [], 0
        for part in self.segments:
            unit = part.size // part.units
            count = max(part.units // devices, 1)
            of_device = [(device + turn * devices) % part.units for turn in range(count)]
            result += [slice(start + item * unit, start + (item + 1) * unit) for item in of_device]
            start += part.size
        return result


def in_turn(cut: ShardedDim) -> ShardedDim:
    """A mistake: units dealt round-robin, of fewer groups than devices."""
    return OtherUnits(cut.dim, cut.axis, cut.segments)


def gates_in_turn(heads: int) -> Callable[[ShardedDim], ShardedDim]:
    """The mistake in a layer's gates, with one number per head."""
    return lambda cut: in_turn(cut) if cut.segments == (Segment(heads, heads),) else cut


def groups_in_turn(cut: ShardedDim) -> ShardedDim:
    """The mistake in layers that repeat groups."""
    return in_turn(cut) if any(part.replicable for part in cut.segments) else cut


def check_equal(steps: Steps, expected: Steps, tolerance: float) -> None:
    """Asserts that hidden states and logits of tokens that count and the states agree."""
    for step, hidden in enumerate(expected.hidden):
        lengths = LENGTHS if hidden.shape[1] == PREFILL else np.full(LANES, hidden.shape[1])
        valid = np.arange(hidden.shape[1])[None] < lengths[:, None]
        for label in ("hidden", "logits"):
            item, other = getattr(steps, label)[step][valid], getattr(expected, label)[step][valid]
            np.testing.assert_allclose(item, other, rtol=0, atol=tolerance, err_msg=f"{label} of step {step}")
        for index, (item, other) in enumerate(zip(steps.states[step], expected.states[step], strict=True)):
            np.testing.assert_allclose(item, other, rtol=0, atol=tolerance, err_msg=f"state {index} of step {step}")
