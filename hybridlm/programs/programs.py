"""The compiled programs of a model: one per step and shape, compiled on first use.

Only another `Shape` compiles again: lengths, positions and sampling settings are operands.

More than 300 lines: one class compiles, loads, keeps and hands out the programs of a model.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax

from hybridlm.devices.machine import cores
from hybridlm.devices.placement import ONE_DEVICE, Placement
from hybridlm.devices.sharded_step import sharded
from hybridlm.multiprocess.operand_check import EXAMPLE_DIGEST, with_operand_check
from hybridlm.programs.jax_settings import JaxSettings, under_settings
from hybridlm.programs.kept_state import kept_state_findings
from hybridlm.programs.shapes import AnyShape, EditShape, S, Shape
from hybridlm.programs.step_key import step_key, structure_name
from hybridlm.programs.stored_programs import Origin, StoredPrograms, types_of
from hybridlm.rows.parts import PartShape
from hybridlm.steps.contract import name_pool_dims, page_table, slot_map, step_contract
from hybridlm.steps.edit import edit_contract, edit_step
from hybridlm.steps.generate import generate_step, hidden_step
from hybridlm.steps.score import score_step
from hybridlm.steps.structure import Structure
from hybridlm.steps.verify import verify_step
from ir_passes import AuditError, Certificate, CompiledStep, IsolationError, LaneContract, compile_step
from ir_passes.compile.planned_step import PlannedStep, plan_step
from ir_passes.compile.proving import Certify, warn
from ir_passes.compile.stored import ExecutableStore, StoredStep
from ir_passes.contract.statements import MeasuredClaim, Note, Statement
from ir_passes.jaxpr import jax_private
from ir_passes.rewrites import drop_dead
from ir_passes.xla_audit.hlo import HloError
from models import BUILT_IN, DecoderConfig, family_named
from models.state.state import Role

_log = logging.getLogger("hybridlm")

COPIED: tuple[Role, ...] = ("conv", "hidden")
"""Roles of small pools that a step may copy: convolution inputs shift by the step's tokens, and the MTP head reads the
previous hidden state after the new one is written. On CPUs XLA writes both in place."""

PASSES = (drop_dead,)
"""The model's steps already have the other rewrites' form."""
GRAPH_COMMANDS = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,DYNAMIC_SLICE_FUSION,WHILE,CONDITIONAL"
"""Commands of a CUDA graph: XLA's own, and loops and branches, which otherwise wait for the host."""
OPTIONS: dict[str, dict[str, Any]] = {
    "gpu": {
        "xla_gpu_dot_merger_threshold_mb": 0,
        "xla_gpu_enable_command_buffer": GRAPH_COMMANDS,
        "xla_disable_hlo_passes": "fusion-dynamic-memcpy-rewriter,dynamic-slice-annotator",
    }
}
"""XLA's compiler options by platform, below XLA_FLAGS.

Merged products would copy their weights in every step. The host would launch a loop with slices as copies, which the
first pass makes in jax 0.10, and the second prepares in jax 0.11.
"""
NO_TILES = "Couldn't find output tile sizes"
"""XLA's message about a product without Triton tiles."""
WITHOUT_TRITON = {"xla_gpu_enable_triton_gemm": False}
"""XLA flags that leave products to cuBLAS."""


class Programs:
    """Compiled steps by shape. Thread-safe; different programs compile concurrently, each once.

    Args:
        cache: JAX's compilation cache for uncertified programs; None for JAX's default.
        executables: stores compiled steps between processes, except of families from another distribution: their
            sources may change.
        config: measures the state after verifying steps, if given.

    Attributes:
        on_compile: called by the compiling thread before each compilation.
        prepared: steps requested from `prepare`, by the caller's description.
        use_store: False in tests that replace parts of steps.
    """

    use_store = True

    def __init__(
        self,
        structure: Structure,
        certify: Certify = "error",
        certificates: Path | None = None,
        placement: Placement = ONE_DEVICE,
        cache: str | None = None,
        executables: ExecutableStore | None = None,
        model: str = "",
        config: DecoderConfig | None = None,
    ):
        self.structure, self.placement = structure, placement
        self.config = config
        self.certify: Certify = certify
        self.settings = JaxSettings(donates=self.certified)
        self._warned_not_audited = False
        self.origins: dict[AnyShape, Origin] = {}
        self.on_compile: Callable[[], None] | None = None
        self._threads: ThreadPoolExecutor | None = None
        self.prepared = set[tuple[Any, ...]]()
        self._directory, self.cache = certificates, cache
        origin = BUILT_IN if config is None else family_named(config.family)[1]
        self._notes = () if origin == BUILT_IN else (Note.OUTSIDE_CODE.statement(origin=origin),)
        self._stored = None
        if executables is not None and self.use_store and not self._notes:
            self._stored = StoredPrograms(executables, model)
        self._compiled: dict[tuple[AnyShape, Any], Future[CompiledStep | StoredStep]] = {}
        self._lock = threading.Lock()

    @property
    def certified(self) -> bool:
        """False for steps that run as traced."""
        return self.certify != "off"

    @property
    def shapes(self) -> list[AnyShape]:
        return list(dict.fromkeys(shape for shape, _ in self._finished()))

    def _finished(self) -> list[tuple[AnyShape, CompiledStep | StoredStep]]:
        """Return compiled programs with shapes, perhaps repeated under other settings."""
        return [(shape, program.result()) for (shape, _), program in list(self._compiled.items()) if program.done()]

    @property
    def certificates(self) -> dict[str, Certificate]:
        """Certificates of compiled steps by shape name; a second is "name (2)"."""
        certificates: dict[str, Certificate] = {}
        for shape, program in sorted(self._finished(), key=lambda pair: str(pair[0])):
            name, count = str(shape), 1
            while name in certificates:
                name, count = f"{shape} ({count + 1})", count + 1
            certificates[name] = program.certificate
        return certificates

    def step(self, shape: AnyShape) -> tuple[Callable[..., Any], LaneContract]:
        """Return a shape's uncompiled step on each device, and the whole step's contract."""
        arrays = self.structure.arrays
        if isinstance(shape, PartShape):
            step, contract = shape.step(self.placement.rows_over)
            return step, name_pool_dims(contract, shape.of(arrays))
        step, contract = self._whole_rows_step(shape)
        return step, name_pool_dims(contract, arrays)

    def _whole_rows_step(self, shape: Shape | EditShape) -> tuple[Callable[..., Any], LaneContract]:
        if isinstance(shape, EditShape):
            slots = slot_map(shape.rows, self.placement.data)
            return edit_step(self.structure, self.placement.devices), edit_contract(self.structure, slots)
        if shape.step == "generate":
            step = generate_step(self.structure, shape.top, shape.processor, shape.mtp_drafts)
        elif shape.step == "verify":
            step = verify_step(self.structure, shape.top, shape.processor, shape.mtp_drafts)
        elif shape.step == "hidden":
            step = hidden_step(self.structure)
        else:
            step = score_step(self.structure, shape.top or 0)
        devices = self.placement.data
        pages = page_table(shape.pages, devices) if shape.pages else None
        slots = slot_map(shape.rows, devices)
        return step, step_contract(shape.step == "verify", self.structure.arrays, slots, pages)

    @under_settings
    def key(self, shape: AnyShape, arguments: tuple[Any, ...]) -> str | None:
        _, args, _ = self._whole_step(shape, arguments)
        return self._key(shape, args)

    def _key(self, shape: AnyShape, args: tuple[Any, ...]) -> str | None:
        return step_key(shape, args, self._structure_name, self.certify, self.placement)

    @cached_property
    def _structure_name(self) -> str | None:
        return structure_name(self.structure)

    @under_settings
    def compiled(
        self, shape: S, arguments: Callable[[S], tuple[Any, ...]], all_have: Callable[[bool], bool] = bool
    ) -> CompiledStep | StoredStep:
        """Return the program of a shape, from the store or compiled.

        Args:
            arguments: example arguments for compilation, perhaps abstract.
            all_have: whether all processes have the program; called once. XLA may compile in all processes together, so
                they use the store together.

        Raises:
            IsolationError, AuditError, HloError: the step is refused; nothing has run.
            SettingError: a setting of JAX prevents certification.
        """
        key = shape, jax_private.program_settings()
        program = self._compiled.get(key)
        if program is None:
            with self._lock:
                program = self._compiled.get(key)
                is_first = program is None
                if program is None:
                    program = self._compiled[key] = Future()
            if is_first:
                try:
                    program.set_result(self._ready(shape, arguments(shape), all_have))
                except BaseException as error:
                    del self._compiled[key]
                    program.set_exception(error)
                    raise
                return program.result()
        all_have(True)
        return program.result()

    @under_settings
    def in_full(self, shape: S, arguments: Callable[[S], tuple[Any, ...]]) -> CompiledStep:
        """Return a program with jaxpr, HLO and proof."""
        program = self.compiled(shape, arguments)
        return program.in_full if isinstance(program, StoredStep) else program

    @under_settings
    def load_ahead(self, shapes: Sequence[AnyShape], arguments: Callable[[Any], tuple[Any, ...]]) -> None:
        """Load stored programs in this order, in threads."""
        if self._stored is not None:
            for shape in shapes:
                example_args = arguments(shape)
                _, args, _ = self._whole_step(shape, example_args)
                key = self._key(shape, args)
                self._stored.load_ahead(key, types_of(args), partial(self._compile, shape, types_of(example_args)))

    @under_settings
    def prepare(self, shapes: Sequence[AnyShape], arguments: Callable[[Any], tuple[Any, ...]]) -> None:
        thread_settings = jax_private.program_settings()
        missing = [shape for shape in shapes if (shape, thread_settings) not in self._compiled]
        if not missing or cores() == 1:
            return

        def ready(shape: AnyShape) -> None:
            try:
                with self.settings.for_steps():
                    # Under settings of the calling thread alone, that thread compiles by itself.
                    if jax_private.program_settings() == thread_settings:
                        self.compiled(shape, arguments)
            except Exception:  # the caller compiles it again, and sees the error
                _log.debug("%s was not made ahead", shape, exc_info=True)

        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "hybridlm-compile")
        for shape in missing:
            self._threads.submit(ready, shape)

    def _ready(
        self, shape: AnyShape, example_args: tuple[Any, ...], all_have: Callable[[bool], bool]
    ) -> CompiledStep | StoredStep:
        if self._stored is None:
            all_have(False)
            compiled = self._compile(shape, example_args)
            self._note(shape, Origin(False, asdict(compiled.certificate.seconds), reusable=False))
            return compiled
        _, args, _ = self._whole_step(shape, example_args)
        types, key = types_of(args), self._key(shape, args)
        stored = self._stored.find(key, types, partial(self._compile, shape, types_of(example_args)))
        if all_have(stored is not None) and stored is not None:
            step, seconds = stored
            self._note(shape, Origin(True, {"load": seconds}, reusable=True))
            self._warn_not_audited(shape, step.certificate)
            return step
        compiled = self._compile(shape, example_args)
        began = time.perf_counter()
        is_stored = self._stored.keep(key, shape, compiled, types)
        seconds = asdict(compiled.certificate.seconds) | {"keep": time.perf_counter() - began}
        self._note(shape, Origin(False, seconds, is_stored))
        return compiled

    def _note(self, shape: AnyShape, origin: Origin) -> None:
        self.origins[shape] = origin
        _log.info("%s: %s", shape, origin)

    def _whole_step(
        self, shape: AnyShape, args: tuple[Any, ...]
    ) -> tuple[Callable[..., Any], tuple[Any, ...], LaneContract]:
        step, contract = self.step(shape)
        mesh = self.placement.mesh
        if self.placement.several_processes:
            step, contract = with_operand_check(step, contract)
            args = *args, self.placement.examples(EXAMPLE_DIGEST, replicated=True)
        return step if mesh is None else sharded(step, args, contract, mesh), args, contract

    def _compile(self, shape: AnyShape, args: tuple[Any, ...]) -> CompiledStep:
        """Compile without JAX's cache: XLA:CPU serializes cached programs without all machine code."""
        step, args, contract = self._whole_step(shape, args)
        options = _options(self.placement.platform)
        compile = partial(
            compile_step, step, args, contract, passes=PASSES, certify=self.certify, certificates=self._directory,
            may_copy=may_copy(self.structure), target=self.placement.target,
        )  # fmt: skip
        if self.on_compile is not None:
            self.on_compile()
        try:
            claims, faults = self.measure(shape)
            with jax_private.without_compilation_cache():
                try:
                    compiled = compile(compiler_options=options or None)
                except jax.errors.JaxRuntimeError as error:
                    # XLA's Triton compiler has no tiles for some products, and no device to look for others.
                    if self.placement.target is None or NO_TILES not in str(error):
                        raise
                    compiled = compile(compiler_options=options | WITHOUT_TRITON)
        except (IsolationError, AuditError, HloError) as error:
            error.add_note(
                f"The step is {_describe(shape)}; it was not run. For experiments, hybridlm.load(..., certify='warn') "
                "runs such steps all the same."
            )
            raise
        certificate = compiled.certificate.with_measured(claims, faults)
        compiled.certificate = replace(certificate, notes=(*certificate.notes, *self._notes))
        self._warn_not_audited(shape, compiled.certificate)
        return compiled

    def measure(self, shape: AnyShape) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
        """Return measured claims of a step's layers, and the faults that warn (`certify="warn"`).

        Raises:
            AuditError: a verifying step would keep another state than after the accepted tokens.
        """
        if self.config is None or not self.certified or not isinstance(shape, Shape) or shape.step != "verify":
            return (), ()
        with jax_private.without_compilation_cache():
            findings = kept_state_findings(self.config, self.placement.devices, self.structure, shape.tokens)
        if not findings:
            return (MeasuredClaim.ACCEPTED_TOKENS_ONLY.statement(),), ()
        if self.certify == "error":
            raise AuditError(findings)
        faults = tuple(finding.statement for finding in findings)
        warn(faults)
        return (), faults

    def _warn_not_audited(self, shape: AnyShape, certificate: Certificate) -> None:
        """Warn once that programs are not audited."""
        with self._lock:
            if not self.certified or certificate.not_audited is None or self._warned_not_audited:
                return
            self._warned_not_audited = True
        _log.warning(
            "the step %s is proved, but XLA's program of it is not audited, and maybe not those of other steps (see "
            "`lm.certificates`): %s",
            _describe(shape),
            certificate.not_audited,
        )

    def compile_unshaped(self, step: Callable[..., Any], args: tuple[Any, ...], contract: LaneContract) -> CompiledStep:
        """Compile a step of several models, without a shape; raises as `compiled`."""
        return compile_step(step, args, contract, passes=PASSES, certify=self.certify)

    @under_settings
    def planned(self, shape: AnyShape, args: tuple[Any, ...]) -> PlannedStep:
        """Return a step's proof and scratch plan without XLA; raises IsolationError; not stored."""
        step, args, contract = self._whole_step(shape, args)
        try:
            return plan_step(step, args, contract, passes=PASSES)
        except IsolationError as error:
            error.add_note(f"The step is {_describe(shape)}.")
            raise


def may_copy(structure: Structure) -> tuple[str, ...]:
    arrays = jax.tree_util.tree_leaves_with_path(structure.arrays.layers)
    return tuple(f"args[1].layers{jax.tree_util.keystr(path)}" for path, array in arrays if array.role in COPIED)


def _options(platform: str) -> dict[str, Any]:
    """Return a platform's compiler options, except those in XLA_FLAGS."""
    flags = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in OPTIONS.get(platform, {}).items() if f"--{name}=" not in flags}


def _describe(shape: AnyShape) -> str:
    return f"{shape} (lanes x tokens)" if isinstance(shape, Shape) else str(shape)
