"""Profile of a step by part of the model."""

import gzip
import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax

from ir_passes import CompiledStep
from ir_passes.xla_audit.hlo import read
from ir_passes.xla_audit.program import Module
from models.ops.linear import PROJECTION

OTHER, HOST = "other", "host"
KERNEL = "hybridlm_"
"""Beginning of the targets of CPU kernels."""


def part_of(op_name: str) -> str | None:
    """Return the first scope of an operation's name: "GatedDeltaNet" of "jit(step)/GatedDeltaNet/mul".

    Products with weights are the part "GatedDeltaNet projection".
    """
    scopes = [piece for piece in op_name.split("/")[:-1] if piece.isidentifier()]
    if not scopes or not (scopes[0][0].isupper() or scopes[0] in ("head", "sample")):
        return None
    return f"{scopes[0]} {PROJECTION}" if PROJECTION in scopes else scopes[0]


def parts_of_instructions(module: Module) -> dict[str, str]:
    """Return parts by instruction; an unnamed fusion has its computation's part.

    A CPU kernel is a part: JAX lowers it once, without scopes of layers.
    """
    parts: dict[str, str] = {}
    owners: dict[int, str] = {}
    for computation in module.computations.values():  # fusions come after their computations
        for instruction in computation.instructions:
            part = part_of(instruction.op_name)
            if instruction.target.startswith(KERNEL):
                part = instruction.target.removeprefix(KERNEL).replace("_", " ")
            if part is not None:
                owners.setdefault(computation.id, part)
            elif instruction.opcode == "fusion":
                part = owners.get(instruction.called[0])
            if part is not None:
                parts[instruction.name] = part
    return parts


def self_times(events: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Return each operation's microseconds, without nested operations on the same thread."""
    total: dict[str, float] = defaultdict(float)
    threads: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and "hlo_op" in (event.get("args") or {}):
            threads[event["pid"], event["tid"]].append(event)
    for thread in threads.values():
        around: list[dict[str, Any]] = []
        for event in sorted(thread, key=lambda event: (event["ts"], -event["dur"])):
            while around and around[-1]["ts"] + around[-1]["dur"] <= event["ts"]:
                around.pop()
            if around:
                total[around[-1]["args"]["hlo_op"]] -= event["dur"]
            total[event["args"]["hlo_op"]] += event["dur"]
            around.append(event)
    return dict(total)


def profile(program: CompiledStep, run: Callable[[], float], times: int) -> dict[str, float]:
    """Return the milliseconds of each part; "host" is the time outside of operations."""
    parts = parts_of_instructions(read(program.compiled, placed=False).module)
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            wall = run()
        files = sorted(Path(directory).rglob("*.trace.json.gz"))
        events = json.loads(gzip.decompress(files[0].read_bytes()))["traceEvents"]
    milliseconds: dict[str, float] = defaultdict(float)
    for name, microseconds in self_times(events).items():
        milliseconds[parts.get(name, OTHER)] += microseconds / 1e3 / times
    ordered = dict(sorted(milliseconds.items(), key=lambda item: -item[1]))
    return ordered | {HOST: max(0.0, wall * 1e3 / times - sum(milliseconds.values()))}
