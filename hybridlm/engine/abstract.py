"""Engines of a model's config.json alone: every weight is a shape and a dtype, without memory."""

from pathlib import Path

from jax.sharding import AbstractMesh, Mesh

from hybridlm.checkpoint import Checkpoint, packed_parameters
from hybridlm.checkpoint.directory import read_config
from hybridlm.checkpoint.model import read_model
from hybridlm.checkpoint.packed.layout import Packed
from hybridlm.checkpoint.packed.parameters import laid_out
from hybridlm.checkpoint.quantise import Recipe, forms_of_copy
from hybridlm.devices.placement import Placement, check_lanes
from hybridlm.engine.arguments import assemble, check_arguments, dtype_of_caches, shards_of_model, weight_types
from hybridlm.engine.engine import Engine
from hybridlm.programs.programs import Programs
from hybridlm.steps.structure import flatten
from ir_passes.targets import Target
from models.ops.kernels import check_mode

DEFAULT_LANES, DEFAULT_PREFILL_ROWS, DEFAULT_CHUNK = 64, 8, 256
"""Serving-size defaults for a large model: decoding sequences, prompts prefilled at a time, tokens of each chunk."""


def abstract_engine(
    path: Path,
    lanes: int | None = None,
    context: int | None = None,
    dtype: str | None = None,
    chunk: int | None = None,
    mesh: Mesh | AbstractMesh | None = None,
    head: bool = False,
    target: Target | None = None,
    kernels: str | None = None,
    recipe: Recipe | None = None,
    checkpoint: Checkpoint | None = None,
) -> Engine:
    """Make an engine whose steps can be proved and planned, or compiled for a target, but not run.

    Args:
        path: a config.json in the format of Hugging Face, or the name of `checkpoint`.
        lanes: maximum number of decoding sequences; None for 64, of which 8 are prefilled at a time.
        context: maximum length of a sequence; None for min(4096, the model's max_position_embeddings).
        dtype: dtype of the matrices; None for the one in the file.
        chunk: tokens of a prompt prefilled by one step; None for 256, or the context if that is less.
        mesh: devices that share the model, of `hybridlm.devices.mesh`; they need not exist.
        head: include the multi-token-prediction head of its checkpoints, which drafts as for `speculate="mtp"`.
        target: machine that steps are compiled for; a mesh is then one of its devices.
        kernels: as of `hybridlm.load`.
        recipe: weights are packed as those of a copy that `quantise_checkpoint` writes by this recipe; None: plain.
        checkpoint: has the configuration and the weights; quantised ones are packed, as `load` keeps them.

    Raises:
        CheckpointError, ConfigError, UnsupportedModel: the file cannot be used; every fault is named.
        ValueError: arguments are wrong; every one is named. The model cannot be split over this many devices, or has no
            supported head.
    """
    family, config = read_model(path, read_config(path) if checkpoint is None else checkpoint.config, head)
    lanes, dtype = DEFAULT_LANES if lanes is None else lanes, config.dtype if dtype is None else dtype
    context, chunk = check_arguments(config, lanes, context, chunk, dtype, "error", None, DEFAULT_CHUNK)
    placement = Placement(mesh, target, kernels)
    check_mode(placement.kernel_mode)
    check_lanes(lanes, placement.data)
    model, found = family.abstract(config.shard(placement.devices)), family.weights(config)
    shards = shards_of_model(family, config, placement)
    products: Packed = "in blocks" if placement.platform == "cpu" else "whole"
    if recipe is not None:
        packed = laid_out(forms_of_copy(found, recipe), shards, dtype, products).types
    elif checkpoint is not None:
        packed = packed_parameters(checkpoint, family, config, dtype, products, shards=shards).types
    else:
        packed = {}
    model, _ = assemble(model, weight_types(found, shards, dtype) | packed)
    structure, params = flatten(model)
    caches, programs = (
        dtype_of_caches(dtype, placement.platform),
        Programs(structure, "error" if target is None else "warn", placement=placement),
    )
    # Without weights there is no fingerprint, and no state to check against one.
    speculate = "mtp" if head else None
    return Engine(
        model, params, programs, lanes, context, chunk, caches, "", dtype, prefill_rows=DEFAULT_PREFILL_ROWS,
        speculate=speculate, placement=placement,
    )  # fmt: skip
