"""Each family's step over a mesh: devices share parameters, lanes and heads."""

from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec as P
from shares import Axes, mesh_of, random_model, spec, spread, tiny, used_rows, with_null_pages
from zoo.program import Program

from hybridlm.steps.contract import page_table, pools_of
from ir_passes import Lane, LaneContract, Shared
from models import Devices
from models.state.pages import own_pages

LANES = 4


def sharded_model(name: str, axes: Axes, tokens: int, **fields: Any) -> Program:
    """Hidden states and rows after so many tokens of each lane.

    Args:
        name: of a variant.
        axes: devices along `data`, `model` and `expert`.
        tokens: of a lane.
        fields: of config.json, in place of the variant's.
    """
    small = tiny(name, **fields)
    model, data, devices = random_model(small), axes[0], Devices(*axes[1:])
    graph = nnx.graphdef(
        nnx.eval_shape(lambda: small.family.build(small.config.shard(devices), nnx.Rngs(0)))  # fmt: skip
    )
    cuts = model.sharded_dims()
    flat: list[tuple[Any, Any]] = list(nnx.to_flat_state(nnx.state(model, nnx.Param)))
    paths = [path for path, _ in flat]
    params = [spread(np.asarray(value[...]), cuts.get(path, ()), devices) for path, value in flat]
    places = [spec(cuts.get(path, ()), devices) for path in paths]
    arrays = jax.tree.leaves(model.state_arrays())
    split = [() if array.sharded_dim is None else (array.sharded_dim,) for array in arrays]
    tree = jax.tree.structure(model.state_arrays())
    leaves = zip(jax.tree.leaves(used_rows(model)), arrays, split, strict=True)
    rows = [spread(with_null_pages(leaf, array, data), cut, devices) for leaf, array, cut in leaves]
    pools = [spec(cut, devices, data) for cut in split]
    pages = next((len(leaf) for leaf, array in zip(rows, arrays, strict=True) if array.grows), 0)
    table = np.tile(own_pages(LANES // data, pages // data), (data, 1)) if pages else None
    lanes = P("data") if data > 1 else P()

    def step(params, rows, ids, lengths, positions, blocks, table):
        merged = nnx.merge(
            graph, nnx.from_flat_state([(path, nnx.Param(array)) for path, array in zip(paths, params, strict=True)])
        )
        hidden, new = merged(ids, lengths, positions, jax.tree.unflatten(tree, rows), blocks, pages=table)
        return hidden, jax.tree.leaves(new)

    over = jax.shard_map(
        step, mesh=mesh_of(axes), in_specs=(places, pools, lanes, lanes, lanes, P(), lanes), out_specs=(lanes, pools)
    )

    def draw(rng: np.random.Generator) -> tuple[Any, ...]:
        ids = rng.integers(0, small.config.vocab_size, (LANES, tokens)).astype(np.int32)
        lengths = rng.integers(0, tokens + 1, LANES).astype(np.int32)
        return params, rows, ids, lengths, rng.integers(0, 9, LANES).astype(np.int32), np.int32(1), table

    entries = pools_of(arrays)
    by_page = page_table(pages, data) if pages else None
    contract = LaneContract(
        inputs=(Shared(), entries, Lane(), Lane(role="length"), Lane(), Shared(), by_page), outputs=(Lane(), entries)
    )
    return Program(f"{name} on {axes}, T={tokens}", over, contract, draw)
