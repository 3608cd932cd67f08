"""Engines of a config.json alone: weights are shapes and dtypes."""

from dataclasses import replace
from pathlib import Path

from hybridlm.checkpoint import Checkpoint, OpenModel, packed_parameters
from hybridlm.checkpoint.directory import read_config
from hybridlm.checkpoint.model import read_model
from hybridlm.checkpoint.packed.layout import Packed
from hybridlm.checkpoint.packed.parameters import laid_out
from hybridlm.checkpoint.quantise import Recipe, forms_of_copy
from hybridlm.engine.arguments import assemble, shards_of_model, weight_types
from hybridlm.engine.config import EngineConfig
from hybridlm.engine.engine import Engine
from hybridlm.programs.programs import Programs
from hybridlm.steps.structure import flatten
from ir_passes.targets import Target

DEFAULT_PREFILL_LANES, DEFAULT_CHUNK = 8, 256
SERVING = EngineConfig(lanes=64)
"""Defaults for serving a large model."""


def abstract_engine(
    path: Path,
    options: EngineConfig = SERVING,
    target: Target | None = None,
    recipe: Recipe | None = None,
    checkpoint: Checkpoint | None = None,
) -> Engine:
    """Make an engine that proves, plans or compiles steps, without running them.

    Args:
        path: a config.json of Hugging Face, or the name of `checkpoint`.
        options: as for `load`; `chunk` is 256 or the context, `dtype` the file's by default. Mesh devices need not
            exist.
        recipe: of packed weights, if any.
        checkpoint: has configuration and weights.

    Raises:
        CheckpointError, ConfigError, UnsupportedModel: with every fault.
        ValueError: every wrong argument, a model that these devices cannot divide, or no supported head.
    """
    fields = read_config(path) if checkpoint is None else checkpoint.config
    family, config = read_model(path, fields, options.needs_head)
    placement = options.place_on(target)
    dtype = options.chosen_dtype or config.dtype
    # Narrower steps are the same program with fewer tokens.
    settings = replace(options.resolved(config, dtype, placement, DEFAULT_CHUNK), widths=())
    model, weights = family.abstract(config.shard(placement.devices)), family.weights(config)
    shards = shards_of_model(family, config, placement)
    products: Packed = "in blocks" if placement.platform == "cpu" else "whole"
    if recipe is not None:
        packed = laid_out(forms_of_copy(weights, recipe), shards, dtype, products).types
    elif checkpoint is not None:
        packed = packed_parameters(OpenModel(checkpoint, family, config), dtype, products, shards=shards).types
    else:
        packed = {}
    model, _ = assemble(model, weight_types(weights, shards, dtype) | packed)
    structure, params = flatten(model)
    programs = Programs(structure, "error" if target is None else "warn", placement=placement)
    # Without weights no state is checked against a fingerprint.
    return Engine(model, params, programs, settings, prefill_lanes=DEFAULT_PREFILL_LANES)
