"""Load a checkpoint: from a directory or Hub id to a model that runs."""

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import jax
from jax.sharding import Mesh

from hybridlm.checkpoint import (
    OpenModel,
    bind,
    dotted,
    fingerprint_of,
    load_parameters,
    open_adapter,
    packed_parameters,
    resolve,
    stored_dtype,
)
from hybridlm.checkpoint.adapters import adapter_folder, base_of, has_adapter
from hybridlm.checkpoint.classifier import READ_ELSEWHERE, read_classifier
from hybridlm.checkpoint.generation_config import read_generation
from hybridlm.checkpoint.hub import resolve_folder
from hybridlm.checkpoint.model import open_model
from hybridlm.checkpoint.packed.layout import Packed
from hybridlm.checkpoint.packed.parameters import PackedParameters
from hybridlm.checkpoint.saved.index import is_saved
from hybridlm.drafting.drafters import DEFAULT_DRAFT_TOKENS, Speculate
from hybridlm.engine.arguments import assemble, check_commit, shards_of_model, weight_types
from hybridlm.engine.config import EngineConfig
from hybridlm.engine.engine import Engine
from hybridlm.engine.memory import admit_model, admit_steps, weight_bytes
from hybridlm.engine.warmup import first_shapes
from hybridlm.errors import CheckpointError
from hybridlm.keywords import suggests_keywords
from hybridlm.lm import LM
from hybridlm.multiprocess.process_group import ProcessGroup
from hybridlm.programs.compilation_cache import STEPS, cache_of
from hybridlm.programs.many_processes import ManyProcesses
from hybridlm.programs.programs import Programs
from hybridlm.programs.runner import Runner
from hybridlm.programs.sanitized import Sanitizer
from hybridlm.programs.start import Start
from hybridlm.progress import load_progress
from hybridlm.steps.structure import flatten
from hybridlm.text.tokenizer import Tokenizer
from hybridlm.text_model import LoadedFiles
from hybridlm.version import __version__
from ir_passes.compile.proving import Certify
from ir_passes.compile.stored import ExecutableStore
from ir_passes.jaxpr.refused import require_threads

_log = logging.getLogger("hybridlm")


@suggests_keywords
def load(
    path_or_hub_id: str | os.PathLike[str],
    *,
    lanes: int = 8,
    context: int | None = None,
    cache: str | int | None = None,
    dtype: str | None = None,
    certify: Certify = "error",
    compilation_cache: str | os.PathLike[str] | Literal[False] | None = None,
    chunk: int | None = None,
    progress: bool | None = None,
    sanitize: bool = False,
    speculate: Speculate = None,
    draft_tokens: int = DEFAULT_DRAFT_TOKENS,
    prefix_cache: str | int | Mapping[str, str | int] | None = None,
    mesh: Mesh | None = None,
    kernels: str | None = None,
    dequantise: str | None = None,
    adapter: str | os.PathLike[str] | Literal[False] | None = None,
) -> LM:
    """Load a checkpoint; `EngineConfig` describes the options.

    Args:
        path_or_hub_id: a directory with config.json and safetensors weights of Hugging Face or of `LM.save`, a GGUF
            file (docs/quantised.md), or a Hub id (HF_HUB_OFFLINE is respected).

    Raises:
        CheckpointError, ConfigError, UnsupportedModel: all faults of config.json, index and headers, otherwise of all
            tensors.
        ValueError: with all wrong arguments.
        ForkedProcessError: the process was forked after JAX had started.
        InsufficientMemory: weights, rows and scratch exceed the available memory.
    """
    require_threads(f"load: {os.fspath(path_or_hub_id)}")
    options = EngineConfig(
        lanes=lanes, context=context, cache=cache, dtype=dtype, certify=certify, compilation_cache=compilation_cache,
        chunk=chunk, progress=progress, sanitize=sanitize, speculate=speculate, draft_tokens=draft_tokens,
        prefix_cache=prefix_cache, mesh=mesh, kernels=kernels, dequantise=dequantise, adapter=adapter,
    )  # fmt: skip
    start = _start(path_or_hub_id, options)
    path, adapter_path = _locate(path_or_hub_id, options.adapter)
    directory, family, config = open_model(path, head=options.needs_head)
    family, config, classifier, has_vocabulary_head = read_classifier(directory, family, config)
    model = OpenModel(directory, family, config)
    adapters = [] if adapter_path is None else [open_adapter(adapter_path)]
    bound = [bind(adapter, family, family.weights(config), config.tied) for adapter in adapters]
    placement = options.place()
    dtype = options.chosen_dtype or stored_dtype(directory)
    settings = options.resolved(config, dtype, placement)
    cache, folder = cache_of(settings.compilation_cache)
    process_group = ProcessGroup(placement) if placement.several_processes else None
    abstract, weights = family.abstract(config.shard(placement.devices)), family.weights(config)
    if settings.drafts:
        check_commit(abstract)
    shards = shards_of_model(family, config, placement)
    products: Packed = "in blocks" if placement.platform == "cpu" else "whole"
    packed = PackedParameters()
    if settings.dequantise is None:
        packed = packed_parameters(model, dtype, products, bound, shards)
    if packed.divided:
        _log.warning(
            "%d quantised weights are plain arrays in %s, as %s: this mesh divides their groups too finely",
            len(packed.divided), dtype, dotted(packed.divided[0]),
        )  # fmt: skip
    size = weight_bytes(weights, dtype, shards, placement, packed.layouts)
    demand = admit_model(abstract, size, settings, placement)
    typed, _ = assemble(abstract, weight_types(weights, shards, dtype) | packed.types)
    structure, types = flatten(typed)
    certificates = None if folder is None else folder / "certificates"
    executables = None if folder is None else ExecutableStore(folder / STEPS)
    programs = Programs(
        structure, settings.certify, certificates, placement, cache, executables,
        directory.path.resolve().name, config,
    )  # fmt: skip
    programs.on_compile = start.compiling
    if not settings.sanitize:
        # Executables are loaded while the weights are read.
        ahead = Engine(typed, types, programs, replace(settings, prefix_cache=None))
        programs.load_ahead(first_shapes(ahead), ahead.example_arguments)
    start.ended("open")
    with load_progress(settings.progress) as report_progress:
        loaded = load_parameters(model, dtype, report_progress, shards, bound, packed=packed)
    start.ended("weights")
    unused = {pattern: count for pattern, count in loaded.skipped.items() if pattern not in READ_ELSEWHERE}
    loaded = replace(loaded, skipped=unused)
    for line in loaded.lines() + ([] if options.chosen_dtype else loaded.conversions(dtype)):
        _log.warning(line)
    module, names = assemble(abstract, loaded.arrays)
    structure, params = flatten(module)
    for adapter_weights in bound:
        _log.warning("%s", adapter_weights.sentence)
    fingerprint = fingerprint_of(directory, dtype, adapters, [dotted(path) for path in packed.layouts])
    tokenizer = Tokenizer.from_dir(directory.path)
    runner: Runner = Sanitizer(programs, placement) if settings.sanitize else Runner(programs, placement)
    if process_group is not None:
        runner = ManyProcesses(programs, placement, process_group)
        process_group.agree_on(
            "settings",
            {
                "checkpoint": str(fingerprint),
                "tokenizer": None if tokenizer is None else tokenizer.fingerprint,
                **settings.texts("adapter", "compilation_cache", "progress"),
                "jax": jax.__version__,
                "hybridlm": __version__,
            },
        )
    # Types only: replaced weights are freed.
    engine = Engine(typed, params, programs, settings, fingerprint, runner)
    start.ended("engine")
    admit_steps(engine, demand)
    named = dict(zip(names, params, strict=True))
    end, ignored = read_generation(directory.path, config.eos_token_ids)
    start.ended("memory")
    for line in ignored + ([] if tokenizer is None else _other_ends(tokenizer, end)):
        _log.warning(line)
    files = LoadedFiles(directory.path, fingerprint, tokenizer, end, adapters, classifier, has_vocabulary_head)
    return LM(module, named, engine, files, start)


def _start(path_or_hub_id: str | os.PathLike[str], options: EngineConfig) -> Start:
    start_time, name = time.perf_counter(), str(path_or_hub_id)
    path = Path(name).resolve()
    short, location = (path.name, str(path)) if path.exists() else (name, name)
    settings = (location, *options.texts("compilation_cache", "progress").items())
    return Start(short, cache_of(options.compilation_cache)[1], settings, options.progress, start_time)


def _locate(
    path_or_hub_id: str | os.PathLike[str], adapter: str | os.PathLike[str] | Literal[False] | None
) -> tuple[Path, Path | None]:
    """Return the directories of the base model and its adapter.

    Raises:
        CheckpointError, ValueError: one is missing, or there are two adapters.
    """
    path = resolve(path_or_hub_id)
    other = None if adapter is None or adapter is False else resolve(adapter)
    if adapter is False or is_saved(path):
        return path, other
    if path.is_dir() and not has_adapter(path) and (folder := adapter_folder(path)) is not None:
        return path, _adapter_of_decisions(path_or_hub_id, path, folder, other)
    if not has_adapter(path):
        return path, other
    if other is not None and other.resolve() != path.resolve():
        raise ValueError(
            f"adapter: {path} has an adapter, and {other} is another one; expected one. Load the folder and call "
            "merge_adapter for the other one, or move its adapter_config.json away"
        )
    return (path if (path / "config.json").exists() else resolve(base_of(path))), path


def _adapter_of_decisions(path_or_hub_id: str | os.PathLike[str], path: Path, folder: str, other: Path | None) -> Path:
    """Return a decision model's adapter; raises CheckpointError or ValueError for another one."""
    adapter = path / folder
    if other is not None and other.resolve() != adapter.resolve():
        raise ValueError(
            f"adapter: {path} is a decision model with the adapter {folder}, expected no other; load it without and "
            "call merge_adapter for the other one, or give adapter=False for the weights alone"
        )
    if not has_adapter(adapter):
        adapter = resolve_folder(path_or_hub_id, folder) / folder
    if not has_adapter(adapter):
        raise CheckpointError(
            adapter,
            "expected the LoRA adapter of the decision model, found none",
            "Where it has been merged into the weights, adapter_subfolder of judge_config.json (adapter of "
            "decision.json) should be null; adapter=False loads the weights alone.",
        )
    return adapter


def _other_ends(tokenizer: Tokenizer, end: tuple[int, ...]) -> list[str]:
    """Return a warning for each apparent end token that ends no completion."""
    apparent = {"the tokenizer's eos_token": tokenizer.eos_token_id, "the chat template's end": tokenizer.turn_end_id}
    return [
        f"{name} {tokenizer.decode([token], skip_special_tokens=False)!r} ({token}) ends no completion, because "
        f"generation_config.json or config.json has other end tokens, {list(end)} (transformers does the same); pass "
        f"stop_token_ids=[{token}] to end there"
        for name, token in apparent.items()
        if token is not None and token not in end
    ]
