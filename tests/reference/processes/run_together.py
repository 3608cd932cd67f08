"""Program of each of several processes in test_processes.py: `python run_together.py DIRECTORY FAULT FAULTY`.

Process 0 writes its results to DIRECTORY/found.json. A fault befalls process FAULTY in the middle of a run.
"""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from safetensors.numpy import load_file, save_file

import hybridlm
from hybridlm.engine.engine import Engine
from hybridlm.multiprocess import environment
from hybridlm.multiprocess.heartbeat import join
from hybridlm.multiprocess.messages import KeyValues
from hybridlm.multiprocess.process_group import PendingStep, ProcessGroup
from hybridlm.programs.many_processes import ManyProcesses
from hybridlm.programs.programs import Programs
from hybridlm.programs.runner import Move
from hybridlm.programs.shapes import Shape
from hybridlm.steps.operands import Batch

PROMPTS = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 3, 12], [3] * 11, [10, 11], [20] * 17, [6], [8, 9] * 9, [5, 6, 7, 8], [4]]
SETTINGS: dict[str, Any] = {"lanes": 8, "context": 200, "dtype": "float32", "chunk": 5}
SAMPLED: dict[str, Any] = {"max_tokens": 8, "ignore_eos": True, "temperature": 0.8, "seed": 3}
Programs.use_store = False  # a fault of a step would not be seen in one that another run has kept
AT = 14
"""The message of process 0 at which it does."""


def everything(lm: hybridlm.LM) -> dict[str, Any]:
    """Numbers of every kind of step: more prompts than lanes, drafts, prefixes and kept prompts."""
    generated = lm.generate(PROMPTS, max_tokens=8, ignore_eos=True, logprobs=0)
    drafted = lm.generate([[5, 6, 7] * 6, [8, 9] * 9], max_tokens=24, ignore_eos=True, speculate="ngram")
    prefix = lm.prefix([3] * 11)
    scores = lm.score(
        PROMPTS[:4], token_ids=[[[5, 6]] * (len(prompt) - 1) for prompt in PROMPTS[:4]], top=2, entropy=True
    )
    return {
        "tokens": [result.token_ids for result in generated],
        "logprobs": [result.logprobs for result in generated],
        "sampled": [result.token_ids for result in lm.generate(PROMPTS[:5], **SAMPLED)],
        "drafted": [result.token_ids for result in drafted],
        "continued": [result.token_ids for result in lm.generate([[5], [6, 7]], max_tokens=4, prefix=prefix)],
        "scores": [result.logprobs[1:].tolist() for result in lm.score(PROMPTS[:7])],
        "chosen": [
            chosen.logprobs.tolist()
            for result in scores
            for chosen in (result.chosen, result.top)
            if chosen is not None
        ],
        "vectors": lm.embed([*PROMPTS, [3] * 12]).tolist(),
    }


def befall(fault: str) -> None:
    """Prepare a fault of this process."""
    get, set_value, traced = KeyValues.get, KeyValues.set, Programs.step
    run, move, new_rows = Engine.run, ManyProcesses.move, Engine.new_rows

    def flipped(self: KeyValues, name: str, seconds: float) -> bytes | None:
        data = get(self, name, seconds)
        if data is None or not name.endswith(f"/{AT}/0"):
            return data
        befallen()
        return data[:50] + bytes([data[50] ^ 4]) + data[51:]

    def in_turn(name: str) -> None:
        if name.endswith(f"/{AT}/0") and name.startswith("message"):
            befallen()
            if fault == "sleep":
                time.sleep(600)
            os.kill(os.getpid(), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)

    def taken_up(self: KeyValues, name: str, seconds: float) -> bytes | None:
        in_turn(name)
        return get(self, name, seconds)

    def said(self: KeyValues, name: str, value: bytes) -> None:
        in_turn(name)
        set_value(self, name, value)

    def earlier(self: KeyValues, name: str, seconds: float) -> bytes | None:
        return get(self, name.replace(f"/{AT}/0", f"/{AT - 1}/0"), seconds)

    def other_batch(self: Engine, shape: Shape, pool: Any, rows: Any, inputs: Any, **rest: Any) -> Any:
        if shape.tokens == 1:
            befallen()
            batch = inputs.batch._replace(**{fault: getattr(inputs.batch, fault) ^ np.int32(1)})
            inputs = inputs._replace(batch=batch)
        return run(self, shape, pool, rows, inputs, **rest)

    def other_slot(self: ManyProcesses, step: Move, examples: Any) -> None:
        befallen()
        read, write, *maps = step.maps
        move(self, step._replace(maps=(read, write + np.int32(1), *maps)), examples)

    def other_step(self: Programs, shape: Any) -> Any:
        step, contract = traced(self, shape)

        def other(*args: Any) -> tuple[Any, ...]:
            result, *rest = step(*args)
            extra = lax.pcast(jnp.float32(0), "data", to="varying")
            if fault == "collectives":
                extra = extra + lax.psum(extra, "data")
            return jax.tree.map(lambda array: array + extra.astype(array.dtype), result), *rest

        return other, contract

    if fault == "flip":
        KeyValues.get = flipped
    elif fault == "epoch":
        KeyValues.get = earlier
    elif fault in ("kill", "stop", "sleep"):
        KeyValues.get, KeyValues.set = taken_up, said
    elif fault == "early":
        befallen()
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault in Batch._fields:
        Engine.run = other_batch  # type: ignore[method-assign]  # the rest by name
    elif fault in ("program", "collectives"):
        Programs.step = other_step
    elif fault == "slot":
        ManyProcesses.move = other_slot  # type: ignore[method-assign]  # once
    elif fault == "rows":
        Engine.new_rows = lambda self, count: new_rows(self, count + 4)
    elif fault == "lanes":
        SETTINGS["lanes"] = 12


def other_weights(directory: Path) -> Path:
    """Return a copy of a checkpoint with one changed row of the embedding."""
    copy = shutil.copytree(directory, directory.with_name(f"{directory.name} of another process"), dirs_exist_ok=True)
    (path,) = copy.glob("*.safetensors")
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("embed_tokens.weight"))
    tensors[name][len(tensors[name]) // 2] *= 2
    save_file(tensors, path)
    return copy


def befallen() -> None:
    print(f"befallen at {time.time()}", file=sys.stderr, flush=True)


def watch_rows() -> None:
    """Report at a disagreement whether this process's rows are unchanged since before the step."""
    call, disagree = ProcessGroup.call, ProcessGroup._disagree
    unchanged: dict[int, bool] = {}

    def local(tree: Any) -> list[np.ndarray]:
        return [np.array(part.data) for leaf in jax.tree.leaves(tree) for part in leaf.addressable_shards]

    def compare(self: ProcessGroup, shape: Any, program: Any, args: tuple, fields: dict[str, int]) -> Any:
        number, rows_before = self._dispatched, local(args[1 if isinstance(shape, Shape) else 0])
        results = call(self, shape, program, args, fields)
        rows_after = local(results[-1])
        unchanged[number] = all(
            np.array_equal(a, b, equal_nan=True) for a, b in zip(rows_before, rows_after, strict=True)
        )
        return results

    def report(self: ProcessGroup, pending: PendingStep) -> None:
        previous = [equal for number, equal in unchanged.items() if number < pending.number]
        print(
            f"process {self.process}: kept {unchanged[pending.number]}, {len(previous) - sum(previous)} changed",
            file=sys.stderr,
        )
        disagree(self, pending)

    ProcessGroup.call, ProcessGroup._disagree = compare, report  # type: ignore[method-assign]  # seen by a test


def work(lm: hybridlm.LM, fault: str) -> dict[str, Any]:
    if fault in ("idle", "saved"):
        return {
            "tokens": [completion.token_ids for completion in lm.generate(PROMPTS[:1], max_tokens=8, ignore_eos=True)]
        }
    return everything(lm)


def main() -> None:
    directory, fault, faulty = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    join(20.0)
    if jax.process_index() == faulty:
        befall(fault)
        directory = other_weights(directory) if fault == "weights" else directory
    if fault in (*Batch._fields, "slot"):
        watch_rows()
    mesh = hybridlm.mesh(data=2, model=2) if fault == "none" else hybridlm.mesh(data=4)
    certify = "error" if fault == "none" else "off"
    try:
        if fault == "saved":
            hybridlm.load(directory, mesh=hybridlm.mesh(data=2, model=2), certify="off", **SETTINGS).save(
                directory / "saved"
            )
            directory /= "saved"
        lm = hybridlm.load(directory, mesh=mesh, certify=certify, prefix_cache="1MB", **SETTINGS)
        if lm.run_worker():
            return
        result = work(lm, fault)
    except (environment.ProcessLost, environment.Disagreement) as error:
        print(f"error: process {jax.process_index()}: {error}", file=sys.stderr)
        environment.exit_peer_lost()
        raise
    (Path(sys.argv[1]) / "found.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
