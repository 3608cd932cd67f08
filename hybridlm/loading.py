"""Load a checkpoint: from a directory or a hub id to a model that runs.

More than 300 lines: a third is what `load` says of its arguments.
"""

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jax
from jax.sharding import Mesh

from hybridlm.checkpoint import (
    Checkpoint,
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
from hybridlm.checkpoint.hub import resolve_folder
from hybridlm.checkpoint.model import open_model
from hybridlm.checkpoint.packed.layout import Packed
from hybridlm.checkpoint.packed.parameters import PackedParameters
from hybridlm.checkpoint.saved.index import is_saved
from hybridlm.devices.placement import Placement, place
from hybridlm.drafting.drafters import DEFAULT_DRAFT_TOKENS, Speculate
from hybridlm.engine.arguments import (
    assemble,
    check_arguments,
    check_commit,
    check_drafting,
    dtype_of_caches,
    dtype_of_dequantised,
    shards_of_model,
    weight_types,
)
from hybridlm.engine.engine import Engine
from hybridlm.engine.memory import admit_model, admit_steps, weight_bytes
from hybridlm.engine.warmup import first_shapes
from hybridlm.engine.widths import step_widths
from hybridlm.errors import CheckpointError
from hybridlm.files.strict_json import read_object
from hybridlm.keywords import suggests_keywords
from hybridlm.lm import LM
from hybridlm.multiprocess.process_group import ProcessGroup
from hybridlm.prefix_cache.budget import cache_budget
from hybridlm.programs.compilation_cache import STEPS, cache_of, is_cache
from hybridlm.programs.many_processes import ManyProcesses
from hybridlm.programs.programs import Certify, Programs
from hybridlm.programs.runner import OneProcess, Runner
from hybridlm.programs.sanitized import Sanitizer
from hybridlm.programs.start import Start
from hybridlm.progress import load_progress
from hybridlm.steps.structure import flatten
from hybridlm.text.tokenizer import Tokenizer
from hybridlm.version import __version__
from ir_passes.compile.stored import ExecutableStore
from ir_passes.jaxpr.forked import require_threads
from models import DecoderConfig
from models.ops.kernels import check_mode

_log = logging.getLogger("hybridlm")


@suggests_keywords
def load(
    path_or_hub_id: str | os.PathLike[str],
    *,
    lanes: int = 8,
    context: int | None = None,
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
    """Load a checkpoint.

    Args:
        path_or_hub_id: a directory with config.json and safetensors weights as written by Hugging Face or by `LM.save`,
            a GGUF file (docs/quantised.md), or the id of a model on the hub (kept in huggingface_hub's cache;
            HF_HUB_OFFLINE is respected).
        lanes: maximum number of sequences that are computed at the same time.
        context: maximum length of a sequence; None for min(4096, the model's max_position_embeddings).
        dtype: "bfloat16", "float16" or "float32" for the matrices; None for the dtype in which they are stored,
            whatever config.json says: the one of most bytes, and a warning names how many have another. "float32"
            computes every product in full float32, also on devices that would use TF32 by default.
        certify: "error": a step that is not proved to keep its lanes apart, or whose compiled program fails its audit,
            raises IsolationError or AuditError when it is first needed, and is never run; "warn" warns and runs it;
            "off" runs every step unchecked. If a backend of XLA does not report its buffer assignment there is no
            audit: the step runs, and its certificate says why (`not_audited`).
        compilation_cache: folder for compiled steps between processes; None for a folder in the user's cache directory
            (unless JAX has been given one), False for none. Certificates are kept, too: a proof is made once. Files
            that somebody else could have written are not read; see docs/trust.md.
        chunk: tokens of a prompt prefilled by one step; None for 128, or the context if that is less. A text that is
            scored takes steps of exactly `chunk` tokens; with None also narrower ones, so that little is padding.
        progress: show what is happening, and how long it took last time; None does if standard error is a terminal.
        sanitize: for debugging: move shadow labels (owner, position and step of a state) with every row and check them
            wherever a step computes with the row. A row of another lane raises SanitizerError. Steps are proved, but
            neither audited nor dispatched ahead, and are several times slower.
        speculate: drafter for speculative decoding, whose drafts a step then verifies all at once: "ngram" proposes the
            tokens that followed earlier occurrences of the last few tokens; "mtp" uses the multi-token-prediction head
            of the checkpoint (Qwen3-Next, Qwen3.5), which is not read otherwise; an object with `propose(token_ids, k)
            -> list[int]` is a custom drafter; None does not draft. The sampled tokens stay the same, and whether drafts
            are worth their time is measured. See docs/speculation.md.
        draft_tokens: maximum number of drafts of a sequence in a step.
        prefix_cache: memory for the states of earlier prompts, "512MB" or a number of bytes: a prompt continues from
            the deepest cached state of its first tokens. This much on the device and as much in host memory, where the
            least recently used states go; {"device": size, "host": size} sets both. None disables the cache. See
            docs/prefix-cache.md.
        mesh: devices to run on, `hybridlm.mesh(data=2, model=2)` or another mesh with some of the axes "data", "model"
            and "expert"; None for JAX's default device. See docs/devices.md.
        kernels: "auto" runs kernels of our own where the platform has them: products of few rows on CPUs, states,
            attention and experts on GPUs; "off" compiles what XLA makes of the plain forms everywhere; "interpret" runs
            kernels of GPUs and TPUs on any platform by Pallas' interpreter, for tests; None is "auto" on CPUs and "off"
            elsewhere. The numbers are the same up to rounding. See docs/performance.md and docs/accelerators.md.
        dequantise: of a quantised checkpoint: "bfloat16", "float16" or "float32" makes plain arrays of its weights when
            they are read; None keeps matrices packed where they can be, which takes their memory instead. See
            docs/quantised.md.
        adapter: directory or hub id of a LoRA adapter as PEFT saves it, merged into the weights in float32 before they
            are rounded. None for the adapter that lies beside the weights, or that the files of a decision model name,
            if there is one; False for the weights alone. A directory that holds an adapter alone is loaded with the
            base model that it names. See docs/checkpoints/adapters.md.

    Raises:
        CheckpointError, ConfigError, UnsupportedModel: the checkpoint or the adapter cannot be used; every fault is
            named: first those of config.json, of the index and of all headers, and if there are none those of all
            tensors.
        ValueError: arguments are wrong; every one is named.
        ForkedProcessError: the process was forked after JAX had started, so that nothing can be computed in it.
        InsufficientMemory: weights, rows and the steps' scratch exceed the available memory.
    """
    require_threads(f"load: {os.fspath(path_or_hub_id)}")
    # The line that says what is loaded comes before anything is read or checked.
    axes = getattr(mesh, "shape", None)
    given = (lanes, context, chunk, dtype, certify, axes, sanitize, dequantise, adapter, kernels)
    start = _say_so(path_or_hub_id, given, compilation_cache, progress)
    path, adapter_path = _locate(path_or_hub_id, adapter)
    directory, family, config = open_model(path, head=speculate == "mtp")
    family, config, classifier, has_vocabulary_head = read_classifier(directory, family, config)
    adapters = [] if adapter_path is None else [open_adapter(adapter_path)]
    bound = [bind(one, family, family.weights(config), config.tied) for one in adapters]
    given_chunk = chunk
    context, chunk = check_arguments(config, lanes, context, chunk, dtype, certify, compilation_cache)
    check_drafting(speculate, draft_tokens, context)
    placement = Placement(kernels=kernels) if mesh is None else place(mesh, lanes, sanitize, kernels)
    check_mode(placement.kernel_mode)
    widths = (chunk,) if given_chunk is not None else step_widths(chunk, placement.platform)
    budget = None if prefix_cache is None else cache_budget(prefix_cache, placement.several_processes)
    if dequantise is not None:
        dtype = dtype_of_dequantised(dequantise, dtype)
    asked, dtype = dtype, stored_dtype(directory) if dtype is None else dtype
    cache = cache_of(compilation_cache)
    process_group = ProcessGroup(placement) if placement.several_processes else None
    cache_dtype = dtype_of_caches(dtype, placement.platform)
    abstract, weights = family.abstract(config.shard(placement.devices)), family.weights(config)
    if speculate is not None:
        check_commit(abstract)
    shards = shards_of_model(family, config, placement)
    products: Packed = "in blocks" if placement.platform == "cpu" else "whole"
    packed = PackedParameters(products)
    if dequantise is None:
        packed = packed_parameters(directory, family, config, dtype, products, bound, shards)
    if packed.divided:
        _log.warning(
            "%d quantised weights are plain arrays in %s, as %s: this mesh divides their groups too finely",
            len(packed.divided), dtype, dotted(packed.divided[0]),
        )  # fmt: skip
    size = weight_bytes(weights, dtype, shards, placement, packed.layouts)
    demand = admit_model(abstract, size, cache_dtype, lanes, context, budget, placement)
    typed, _ = assemble(abstract, weight_types(weights, shards, dtype) | packed.types)
    structure, types = flatten(typed)
    certificates = None if cache.folder is None else cache.folder / "certificates"
    executables = None if cache.folder is None else ExecutableStore(cache.folder / STEPS)
    programs = Programs(
        structure, certify, certificates, placement, cache.setting, executables, directory.path.resolve().name, config
    )
    programs.on_compile = start.compiling
    if not sanitize:
        # Executables are loaded while the weights are read.
        ahead = Engine(typed, types, programs, lanes, context, chunk, cache_dtype, "", dtype, placement=placement)
        programs.load_ahead(first_shapes(ahead), ahead.example_arguments)
    start.ended("open")
    with load_progress(progress) as report_progress:
        arrays, report = load_parameters(
            directory, family, config, dtype, report_progress, shards, bound, packed=packed
        )
    start.ended("weights")
    unused = {pattern: count for pattern, count in report.skipped.items() if pattern not in READ_ELSEWHERE}
    report = replace(report, skipped=unused)
    for line in report.lines() + ([] if asked is not None else report.conversions(dtype)):
        _log.warning(line)
    model, names = assemble(abstract, arrays)
    structure, params = flatten(model)
    for one in bound:
        _log.warning("%s", one.sentence)
    fingerprint = fingerprint_of(directory, dtype, adapters, [dotted(path) for path in packed.layouts])
    tokenizer = Tokenizer.from_dir(directory.path)
    runner: Runner = Sanitizer(programs, placement) if sanitize else OneProcess(programs, placement)
    if process_group is not None:
        runner = ManyProcesses(programs, placement, process_group)
        process_group.agree_on(
            "settings",
            {
                "checkpoint": str(fingerprint),
                "tokenizer": None if tokenizer is None else tokenizer.fingerprint,
                "lanes": lanes,
                "context": context,
                "chunk": chunk,
                "widths": widths,
                "dtype": dtype,
                "mesh": placement.mesh,
                "speculate": speculate,
                "draft_tokens": draft_tokens,
                "prefix_cache": budget,
                "jax": jax.__version__,
                "hybridlm": __version__,
            },
        )
    # The types alone: weights that are replaced later are not kept by it.
    engine = Engine(
        typed,
        params,
        programs,
        lanes,
        context,
        chunk,
        cache_dtype,
        fingerprint,
        dtype,
        runner,
        speculate=speculate,
        draft_tokens=draft_tokens,
        prefix_cache=budget,
        placement=placement,
        decisions=None if process_group is None else process_group.decisions,
        config=config,
        widths=widths,
    )
    start.ended("engine")
    admit_steps(engine, demand)
    named = dict(zip(names, params, strict=True))
    end = _end_tokens(directory, config)
    start.ended("memory")
    for line in [] if tokenizer is None else _other_ends(tokenizer, end):
        _log.warning(line)
    return LM(
        model, config, structure, named, engine, tokenizer, end, cache_dtype, directory.path, fingerprint, start,
        adapters, classifier, has_vocabulary_head,
    )  # fmt: skip


def _say_so(path_or_hub_id: str | os.PathLike[str], given: tuple[Any, ...], cache: Any, progress: bool | None) -> Start:
    """Begin a start, with a line for the user.

    Args:
        path_or_hub_id, cache, progress: as `load` has them.
        given: its other arguments, on which the seconds of a start depend.
    """
    began, named = time.perf_counter(), str(path_or_hub_id)
    path = Path(named).resolve()
    name, place = (path.name, str(path)) if path.exists() else (named, named)
    settings = (place, *(one if one is None or isinstance(one, bool | int) else str(one) for one in given))
    return Start(name, cache_of(cache).folder if is_cache(cache) else None, settings, progress, began)


def _locate(
    path_or_hub_id: str | os.PathLike[str], adapter: str | os.PathLike[str] | Literal[False] | None
) -> tuple[Path, Path | None]:
    """Return the directories of the base model and of its adapter.

    Raises:
        CheckpointError: one of them is not there.
        ValueError: two adapters are asked for.
    """
    path = resolve(path_or_hub_id)
    given = None if adapter is None or adapter is False else resolve(adapter)
    if adapter is False or is_saved(path):
        return path, given
    if path.is_dir() and not has_adapter(path) and (folder := adapter_folder(path)) is not None:
        return path, _adapter_of_decisions(path_or_hub_id, path, folder, given)
    if not has_adapter(path):
        return path, given
    if given is not None and given.resolve() != path.resolve():
        raise ValueError(
            f"adapter: {path} holds an adapter of its own, beside {given}; expected one. Load it and call "
            "merge_adapter for the other one, or move its adapter_config.json away"
        )
    return (path if (path / "config.json").exists() else resolve(base_of(path))), path


def _adapter_of_decisions(path_or_hub_id: str | os.PathLike[str], path: Path, folder: str, given: Path | None) -> Path:
    """Return the adapter that the files of a decision model name.

    Raises:
        CheckpointError: it is not there.
        ValueError: another adapter is asked for.
    """
    own = path / folder
    if given is not None and given.resolve() != own.resolve():
        raise ValueError(
            f"adapter: {path} is a decision model with the adapter {folder}, expected no other; load it without and "
            "call merge_adapter for the other one, or give adapter=False for the weights alone"
        )
    if not has_adapter(own):
        own = resolve_folder(path_or_hub_id, folder) / folder
    if not has_adapter(own):
        raise CheckpointError(
            own,
            "expected the LoRA adapter of the decision model, found none",
            "Where it has been merged into the weights, adapter_subfolder of judge_config.json (adapter of "
            "decision.json) should be null; adapter=False loads the weights alone.",
        )
    return own


def _end_tokens(directory: Checkpoint, config: DecoderConfig) -> tuple[int, ...]:
    """Return the end tokens of generation_config.json, as in transformers; without any, those of config.json."""
    ids = []
    path = directory.path / "generation_config.json"
    if path.exists():
        more = read_object(path, 1 << 20).get("eos_token_id")
        ids += more if isinstance(more, list) else [] if more is None else [more]
    if any(isinstance(token, bool) or not isinstance(token, int) or token < 0 for token in ids):
        raise ValueError(f"{path}: eos_token_id: expected a token id or a list of them, found {ids!r}")
    return tuple(dict.fromkeys(ids or config.eos_token_ids))


def _other_ends(tokenizer: Tokenizer, end: tuple[int, ...]) -> list[str]:
    """Return a warning for each token that looks like an end and is none."""
    others = {"the tokenizer's eos_token": tokenizer.eos_token_id, "the chat template's end": tokenizer.turn_end_id}
    return [
        f"{name} {tokenizer.decode([token], skip_special_tokens=False)!r} ({token}) ends no completion, because "
        f"generation_config.json or config.json has other end tokens, {list(end)} (transformers does the same); pass "
        f"stop_token_ids=[{token}] to end there"
        for name, token in others.items()
        if token is not None and token not in end
    ]
