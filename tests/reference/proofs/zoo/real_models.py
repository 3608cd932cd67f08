"""Every engine step of every model family: tiny models of tests/golden with drawn weights."""

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from certificate_table import GOLDEN, NAMES
from paged_shapes import paged
from zoo.program import LANES, SLOTS, Program

from hybridlm.checkpoint.directory import read_config
from hybridlm.checkpoint.model import read_model
from hybridlm.engine.config import ResolvedConfig
from hybridlm.engine.engine import Engine
from hybridlm.engine.warmup import all_shapes
from hybridlm.programs.programs import Programs
from hybridlm.programs.shapes import AnyShape, Shape
from hybridlm.rows.parts import PartShape
from hybridlm.sampling.sampling import FILTERED, Sampling
from hybridlm.steps.operands import Batch, StepInputs
from hybridlm.steps.structure import flatten
from ir_passes import Lane, Pool, Shared, SlotMap
from ir_passes.contract.contract import Bound
from ir_passes.contract.prefix import is_entry
from models import kv_blocks

HEAD = " with head"
MODELS = (*NAMES, *(name + HEAD for name in ("next_dense_layers", "dense_interval", "sparse_base")))
"""A model of each family, and another one with its MTP head for those that have one."""
CHUNK, CONTEXT = 8, 64


@functools.cache
def engine(name: str) -> Engine:
    """Return the engine of a model without weights; "name with head" has the MTP head."""
    path, head = GOLDEN / name.removesuffix(HEAD) / "config.json", name.endswith(HEAD)
    family, config = read_model(path, read_config(path), head)
    model = family.abstract(config)
    structure, params = flatten(model)
    settings = ResolvedConfig(
        lanes=LANES, context=CONTEXT, chunk=CHUNK, dtype="float32", speculate="mtp" if head else None
    )
    return Engine(model, params, Programs(structure), settings)


def shapes(name: str, all_lanes: bool = False) -> list[AnyShape]:
    """Every step: reading prompts, decoding, verifying, scoring, copying rows, keeping states and putting them back.

    Args:
        name: of the model.
        all_lanes: for every number of lanes that is compiled, not for the largest alone.
    """
    shapes = all_shapes(engine(name), drafts=True)
    with_logprobs = [Shape("generate", LANES, 1, SLOTS, 2), Shape("score", LANES, CHUNK, LANES, 2)]
    with_logprobs = [paged(engine(name), shape) for shape in with_logprobs]
    return [*(shape for shape in shapes if all_lanes or _rows(shape) == {LANES}), *with_logprobs]


def steps(name: str, all_lanes: bool = False, mapped: bool = False) -> Iterator[Program]:
    """Yield the program of each of a model's `shapes`; `mapped`: also one-lane forms under `vmap` without pages."""
    for shape in shapes(name, all_lanes):
        yield (item := program(name, shape))
        if mapped and isinstance(shape, Shape) and shape.rows == shape.lanes and not shape.pages:
            yield vmapped(item)


def _rows(shape: AnyShape) -> set[int]:
    if isinstance(shape, Shape):
        return {shape.lanes}
    # Of a move the rows of the pool, or a page for each of them and the null page.
    return {shape.pool if isinstance(shape, PartShape) and shape.part == "state" else LANES}


def program(name: str, shape: AnyShape) -> Program:
    """Return a model's step with random arguments within the engine's limits."""
    step, contract = engine(name).programs.step(shape)
    types = engine(name).example_arguments(shape)
    bound = contract.bind(step, types)

    def draw(rng: np.random.Generator) -> tuple[Any, ...]:
        if not isinstance(shape, Shape):
            return jax.tree.unflatten(jax.tree.structure(types), [_moved(rng, spec) for spec in bound.inputs])
        params, rows = jax.tree.map(lambda leaf: _drawn(rng, leaf), types[:2])
        return params, rows, _inputs(rng, shape, engine(name).vocab_size)

    return Program(f"{name}, {shape}", step, contract, draw)


def _drawn(rng: np.random.Generator, leaf: Any) -> np.ndarray:
    if np.issubdtype(leaf.dtype, np.integer):
        return rng.integers(0, 53, leaf.shape).astype(leaf.dtype)
    return rng.normal(size=leaf.shape, scale=0.3).astype(leaf.dtype)


def _moved(rng: np.random.Generator, spec: Bound) -> np.ndarray:
    """Draw arguments of a step that copies or keeps a row: any row, or arrays."""
    if isinstance(spec.entry, SlotMap):
        return rng.integers(0, spec.entry.size, spec.shape).astype(np.int32)
    return _drawn(rng, spec)


def _inputs(rng: np.random.Generator, shape: Shape, vocab: int) -> StepInputs:
    lanes, tokens = shape.lanes, shape.tokens
    ids = rng.integers(0, vocab, (lanes, tokens)).astype(np.int32)
    lengths = rng.integers(0, tokens + 1, lanes).astype(np.int32)
    positions = rng.integers(0, CONTEXT - tokens - 8, lanes).astype(np.int32)
    slots = rng.permutation(shape.rows)[:lanes].astype(np.int32)
    table = None
    if shape.pages:
        pages = 1 + rng.permutation(shape.pages - 1)[: lanes * shape.blocks].reshape(lanes, shape.blocks)
        table = np.where((lengths > 0)[:, None], pages, 0).astype(np.int32)
    batch = Batch(ids, lengths, positions, slots, np.int32(kv_blocks(CONTEXT)), table)
    if shape.step == "score":
        return StepInputs(batch, targets=rng.integers(0, vocab, (lanes, tokens)).astype(np.int32))
    sampling = Sampling(
        np.where(rng.random(lanes) < 0.5, 0, 1).astype(np.float32),
        rng.integers(0, 6, lanes).astype(np.int32),
        rng.uniform(0.8, 1.0, lanes).astype(np.float32),
        rng.uniform(0.0, 0.1, lanes).astype(np.float32),
        rng.integers(0, 2**32, (lanes, 2)).astype(np.uint32),
        rng.integers(0, 9, lanes).astype(np.uint32),
    )
    drafts = np.where(lengths > 1, rng.integers(0, tokens, lanes) % np.maximum(lengths, 1), 0).astype(np.int32)
    return StepInputs(batch, drafts if shape.step == "verify" else None, sampling, np.int32(FILTERED))


def vmapped(program: Program) -> Program:
    """Return the program of one lane under `jax.vmap`: its row, tokens and shared operands.

    Only of a step whose arguments all have lanes or are shared, with as many rows as lanes: row i is of lane i, without
    slots. A step that keeps a row has one lane: mapped over more of them it would return a whole pool for each. The
    pools have no names: a model's names are for one lane's arrays, without the dimension that `vmap` adds.
    """
    entries = jax.tree.map(_of_lanes, program.contract.inputs, is_leaf=is_entry)

    def alone(entry: Any, part: Any) -> Any:
        return part if isinstance(entry, Shared) else jax.tree.map(lambda leaf: leaf[None], part)

    def lane(*args: Any) -> Any:
        params, rows, inputs = jax.tree.map(alone, entries, args, is_leaf=is_entry)
        inputs = inputs._replace(batch=inputs.batch._replace(slots=None))
        return jax.tree.map(lambda leaf: leaf[0], program.step(params, rows, inputs))

    axes = jax.tree.map(lambda entry: None if isinstance(entry, Shared) else 0, entries, is_leaf=is_entry)

    contract = replace(
        program.contract, inputs=_unnamed(entries), outputs=_unnamed(program.contract.outputs), opaque={}
    )
    return program.but(name=f"{program.name}, vmapped", step=jax.vmap(lane, in_axes=axes), contract=contract)


def _of_lanes(entry: Any) -> Any:
    return Lane() if isinstance(entry, SlotMap) else entry


def _unnamed(entries: Any) -> Any:
    def unnamed(entry: Any) -> Any:
        return replace(entry, dims=None) if isinstance(entry, Pool) else entry

    return jax.tree.map(unnamed, entries, is_leaf=is_entry)
