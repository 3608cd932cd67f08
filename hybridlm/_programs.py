"""The compiled programs of a model: one for each step and shape, certified and compiled on first use, and kept."""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hybridlm._sampling import LogitsProcessor
from hybridlm._steps import GENERATE_CONTRACT, SCORE_CONTRACT, Step, Structure, generate_step, score_step
from ir_passes import (
    AuditError,
    Certificate,
    CompiledStep,
    HloError,
    IsolationError,
    LaneContract,
    compile_step,
)

Certify = Literal["error", "warn", "off"]
CERTIFY: tuple[Certify, ...] = ("error", "warn", "off")
MAY_COPY = ("argument 1*.conv",)
"""Pools that a step may copy: the inputs of a convolution move up by one, which needs bytes beside their own."""


@dataclass(frozen=True)
class Shape:
    """What a program is compiled for.

    Attributes:
        step: "generate" or "score".
        lanes, tokens: N and T.
        top: log-probabilities reported (None: none at all).
        processor: the logits processor, None for none.
    """

    step: Literal["generate", "score"]
    lanes: int
    tokens: int
    top: int | None = None
    processor: LogitsProcessor | None = None

    def __str__(self) -> str:
        top = "" if not self.top and (self.top is None or self.step == "score") else f" top={self.top}"
        name = getattr(self.processor, "__qualname__", type(self.processor).__name__)
        return f"{self.step} {self.lanes}x{self.tokens}{top}" + (f" processor={name}" if self.processor else "")


def lane_rung(count: int, lanes: int) -> int:
    """The compiled number of lanes for `count` sequences: the next power of two, at most `lanes`."""
    return min(1 << max(count - 1, 0).bit_length(), lanes)


class Programs:
    """Compiled steps by shape. Thread-safe; a program is compiled once.

    Args:
        structure: of the model.
        certify: whether a step that is not proved, or fails its audit, raises, warns or is not looked at.
        certificates: directory in which certificates are kept, None for none.
    """

    def __init__(self, structure: Structure, certify: Certify = "error", certificates: Path | None = None):
        self._structure = structure
        self._certify: Certify = certify
        self._directory = certificates
        self._compiled: dict[Shape, CompiledStep] = {}
        self._lock = threading.Lock()

    @property
    def shapes(self) -> list[Shape]:
        """What has been compiled so far."""
        return list(self._compiled)

    @property
    def certificates(self) -> dict[str, Certificate]:
        """Of every compiled step, by the name of its shape; of two of one name the second is "name (2)"."""
        found: dict[str, Certificate] = {}
        for shape, program in list(self._compiled.items()):
            name, count = str(shape), 1
            while name in found:
                name, count = f"{shape} ({count + 1})", count + 1
            found[name] = program.certificate
        return found

    def step(self, shape: Shape) -> tuple[Step, LaneContract]:
        """The step of a shape, not compiled, and its contract."""
        if shape.step == "generate":
            return generate_step(self._structure, shape.top, shape.processor), GENERATE_CONTRACT
        return score_step(self._structure, shape.top or 0), SCORE_CONTRACT

    def run(self, shape: Shape, *args: Any) -> tuple[Any, tuple]:
        """Run a step; its pools are consumed.

        Args:
            shape: which program.
            args: as the step takes them, host arrays included, which must not be written to afterwards.

        Raises:
            IsolationError, AuditError, HloError: the step is refused (see `compile_step`); nothing has run.
        """
        return self.compiled(shape, args)(*args)

    def compiled(self, shape: Shape, args: tuple[Any, ...]) -> CompiledStep:
        """The program of a shape, for arguments like these; they may be abstract. Raises as `run`."""
        with self._lock:
            program = self._compiled.get(shape)
            if program is None:
                program = self._compiled[shape] = self._compile(shape, args)
        return program

    def _compile(self, shape: Shape, args: tuple[Any, ...]) -> CompiledStep:
        step, contract = self.step(shape)
        try:
            return compile_step(
                step, args, contract, certify=self._certify, certificates=self._directory, may_copy=MAY_COPY
            )
        except (IsolationError, AuditError, HloError) as error:
            error.add_note(
                f"The step is {shape} (lanes x tokens); it was not run. For experiments, "
                "hybridlm.load(..., certify='warn') runs such steps all the same."
            )
            raise
