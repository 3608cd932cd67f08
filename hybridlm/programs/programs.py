"""The compiled programs of a model: one for each step and shape, certified and compiled on first use, and kept."""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hybridlm.devices.placement import ONE_DEVICE, Placement
from hybridlm.devices.sharded_step import sharded
from hybridlm.multiprocess.agreement import EXAMPLE, compared
from hybridlm.programs.compilation_cache import NOWHERE, kept_in
from hybridlm.programs.shapes import AnyShape, CopyShape, S, Shape
from hybridlm.programs.stored_programs import StoredPrograms, types_of
from hybridlm.rows.parts import PartShape
from hybridlm.rows.pool import copy_contract, copy_row
from hybridlm.rows.split import SplitRows
from hybridlm.steps.dim_names import labelled
from hybridlm.steps.generate import GENERATE_CONTRACT, generate_step
from hybridlm.steps.score import SCORE_CONTRACT, score_step
from hybridlm.steps.structure import Structure
from hybridlm.steps.verify import VERIFY_CONTRACT, verify_step
from ir_passes import (
    AuditError,
    Certificate,
    CompiledStep,
    ExecutableStore,
    HloError,
    IsolationError,
    LaneContract,
    PlannedStep,
    StoredStep,
    compile_step,
    plan_step,
)
from ir_passes.rewrites import DropDead

_log = logging.getLogger("hybridlm")

Certify = Literal["error", "warn", "off"]
CERTIFY: tuple[Certify, ...] = ("error", "warn", "off")
MAY_COPY = ("argument 1.layers*.conv", "argument 1.layers*.hidden")
"""Pools that a step may copy, both of them small: the last inputs of a convolution move up by the tokens of the step,
and a head takes a hidden state of the step before after this step's are there. XLA can write both in place, and on CPUs
it does in all steps of docs/certificates.md but those that name `conv`."""

PASSES = (DropDead(),)
"""The model's steps are written in the form that the other rewrites lead to."""


class Programs:
    """Compiled steps by shape. Thread-safe; a program is compiled once, and different ones at the same time.

    Args:
        structure: of the model.
        certify: whether a step that is not proved, or fails its audit, raises, warns or is not looked at.
        certificates: directory in which certificates are kept, None for none.
        placement: the devices that steps run on.
        cache: the folder where JAX keeps compiled steps between processes; None for its own setting.
        executables: keeps compiled steps with their certificates between processes; None keeps none.
        model: its name, for who lists what is kept.

    Attributes:
        int8_head_lanes: numbers of lanes whose steps draw the most likely tokens with the int8 head, which they are
            given behind the parameters; for the programs that are compiled from then on.
        use_store: whether steps are kept between processes, if there is a place; tests replace parts of steps.
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
    ):
        self._structure, self._placement = structure, placement
        self._split = SplitRows(placement.rows_over)
        self.certify: Certify = certify
        self.int8_head_lanes: frozenset[int] = frozenset()
        self._told_not_audited = False
        self._directory, self.cache = certificates, cache
        self._stored = None
        if executables is not None and self.use_store:
            self._stored = StoredPrograms(executables, structure, certify, placement, model)
        self._compiled: dict[AnyShape, Future[CompiledStep | StoredStep]] = {}
        self._lock = threading.Lock()

    @property
    def shapes(self) -> list[AnyShape]:
        """What has been compiled so far."""
        return [shape for shape, program in list(self._compiled.items()) if program.done()]

    @property
    def certificates(self) -> dict[str, Certificate]:
        """Of every compiled step, by the name of its shape; of two of one name the second is "name (2)"."""
        found: dict[str, Certificate] = {}
        for shape in self.shapes:
            name, count = str(shape), 1
            while name in found:
                name, count = f"{shape} ({count + 1})", count + 1
            found[name] = self._compiled[shape].result().certificate
        return found

    def step(self, shape: AnyShape) -> tuple[Callable[..., Any], LaneContract]:
        """The step of a shape as each device runs it, not compiled, and the contract of the whole step."""
        arrays = self._structure.arrays
        if isinstance(shape, PartShape):
            step, contract = shape.step(self._split)
            return step, labelled(contract, shape.of(arrays), shape.positions_first)
        step, contract = self._whole_rows_step(shape)
        return step, labelled(contract, arrays)

    def _whole_rows_step(self, shape: Shape | CopyShape) -> tuple[Callable[..., Any], LaneContract]:
        if isinstance(shape, CopyShape):
            return copy_row(self._split, self._split), copy_contract(shape.source, shape.target)
        if shape.step == "generate":
            screened = shape.top is None and shape.processor is None and shape.lanes in self.int8_head_lanes
            step = generate_step(self._structure, shape.top, shape.processor, shape.guesses, screened)
            return step, GENERATE_CONTRACT
        if shape.step == "verify":
            return verify_step(self._structure, shape.top, shape.processor, shape.guesses), VERIFY_CONTRACT
        return score_step(self._structure, shape.top or 0), SCORE_CONTRACT

    def compiled(self, shape: S, arguments: Callable[[S], tuple[Any, ...]]) -> CompiledStep | StoredStep:
        """The program of a shape: the one that is kept, or else compiled.

        Args:
            shape: which program.
            arguments: gives example arguments of a shape, which may be abstract, if it has to be compiled.

        Raises:
            IsolationError, AuditError, HloError: the step is refused (see `compile_step`); nothing has run.
        """
        program = self._compiled.get(shape)
        if program is None:
            with self._lock:
                program = self._compiled.get(shape)
                mine = program is None
                if program is None:
                    program = self._compiled[shape] = Future()
            if mine:
                try:
                    program.set_result(self._ready(shape, arguments(shape)))
                except BaseException as error:
                    del self._compiled[shape]
                    program.set_exception(error)
                    raise
        return program.result()

    def in_full(self, shape: S, arguments: Callable[[S], tuple[Any, ...]]) -> CompiledStep:
        """The program of a shape with all that is known of it; one that was kept is compiled anew to be looked at."""
        program = self.compiled(shape, arguments)
        return program.in_full if isinstance(program, StoredStep) else program

    def load_ahead(self, shapes: Sequence[AnyShape], arguments: Callable[[Any], tuple[Any, ...]]) -> None:
        """Load programs that are kept, in this order, in threads; others are compiled when they are needed.

        Args:
            shapes: which programs.
            arguments: as for `compiled`.
        """
        if self._stored is not None:
            for shape in shapes:
                given = arguments(shape)
                _, args, _ = self._whole_step(shape, given)
                key = self._stored.key(shape, args, self.int8_head_lanes)
                self._stored.load_ahead(key, types_of(args), partial(self._compile, shape, types_of(given)))

    def _ready(self, shape: AnyShape, given: tuple[Any, ...]) -> CompiledStep | StoredStep:
        """The program of a shape from the store, or compiled and kept."""
        if self._stored is None:
            return self._compile(shape, given)
        _, args, _ = self._whole_step(shape, given)
        types, key = types_of(args), self._stored.key(shape, args, self.int8_head_lanes)
        found = self._stored.find(key, types, partial(self._compile, shape, types_of(given)))
        if found is not None:
            self._tell_not_audited(shape, found.certificate)
            return found
        # XLA:CPU writes a program that JAX took from its own cache without parts of its machine code.
        compiled = self._compile(shape, given) if key is None else self._compile(shape, given, NOWHERE)
        self._stored.keep(key, shape, compiled, types)
        return compiled

    def _whole_step(
        self, shape: AnyShape, args: tuple[Any, ...]
    ) -> tuple[Callable[..., Any], tuple[Any, ...], LaneContract]:
        """The step of a shape over all devices, its example arguments and its contract."""
        step, contract = self.step(shape)
        mesh = self._placement.mesh
        if self._placement.several_processes:
            step, contract = compared(step, contract)
            args += self._placement.examples([EXAMPLE], whole=True)
        return step if mesh is None else sharded(step, args, contract, mesh), args, contract

    def _compile(self, shape: AnyShape, args: tuple[Any, ...], cache: str | None = None) -> CompiledStep:
        """Compile; `cache` is where JAX keeps the program, None for where all are kept."""
        step, args, contract = self._whole_step(shape, args)
        try:
            with kept_in(self.cache if cache is None else cache):
                compiled = compile_step(
                    step,
                    args,
                    contract,
                    passes=PASSES,
                    certify=self.certify,
                    certificates=self._directory,
                    may_copy=MAY_COPY,
                )
        except (IsolationError, AuditError, HloError) as error:
            error.add_note(
                f"The step is {_in_words(shape)}; it was not run. For experiments, hybridlm.load(..., certify='warn') "
                "runs such steps all the same."
            )
            raise
        self._tell_not_audited(shape, compiled.certificate)
        return compiled

    def _tell_not_audited(self, shape: AnyShape, certificate: Certificate) -> None:
        """Say once that programs are not audited; why stands in the certificate of each."""
        with self._lock:
            if self.certify == "off" or certificate.not_audited is None or self._told_not_audited:
                return
            self._told_not_audited = True
        _log.warning(
            "the step %s is proved, but what XLA made of it is not audited, and so it may be of others (see "
            "`lm.certificates`): %s",
            _in_words(shape),
            certificate.not_audited,
        )

    def planned(self, shape: AnyShape, args: tuple[Any, ...]) -> PlannedStep:
        """What is known of a shape's step before XLA; kept nowhere.

        Args:
            shape: which step.
            args: example arguments, which may be abstract.

        Raises:
            IsolationError: the step is refused.
        """
        step, args, contract = self._whole_step(shape, args)
        try:
            return plan_step(step, args, contract, passes=PASSES)
        except IsolationError as error:
            error.add_note(f"The step is {_in_words(shape)}.")
            raise


def _in_words(shape: AnyShape) -> str:
    return f"{shape} (lanes x tokens)" if isinstance(shape, Shape) else str(shape)
