"""`hybridlm bench --mixed`: the table of a mixed batch."""

import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import jax
import typer

from hybridlm.bench.llama_cpp import LlamaServerSide
from hybridlm.bench.mixed import MixedRequest, OwnMixedSide, mixed_requests
from hybridlm.bench.sides import MIXED, Against, SideFailed, Timing, in_turns, leave_out
from hybridlm.bench.vllm_side import VllmSide
from hybridlm.cli.options import Loading, console_for_table, table_of, write_json
from hybridlm.devices.machine import cores
from hybridlm.lm import LM

MixedSide = OwnMixedSide | LlamaServerSide | VllmSide
DEFAULT_CONTEXT = 2048
EXIT_SIDES_FAILED = 3


@dataclass(frozen=True, kw_only=True)
class MixedOptions:
    """Mixed batch."""

    mixed: Annotated[
        bool,
        typer.Option(
            "--mixed", help="Measure a mixed batch instead: prompts and completions of different lengths, --requests."
        ),
        MIXED,
    ] = False
    requests: Annotated[int, typer.Option(min=1, help="Requests of a mixed batch."), MIXED] = 64
    sampled: Annotated[
        bool,
        typer.Option("--sampled", help="Sample the mixed batch: temperature 0.6, top_p 0.95, top_k 20."),
        MIXED,
    ] = False
    llama_server: Annotated[
        Path | None, typer.Option(help="llama.cpp's llama-server, for --mixed."), MIXED, Against.LLAMA_SERVER
    ] = None
    vllm_python: Annotated[
        Path | None,
        typer.Option(help="Python of an environment with vLLM, for --mixed."),
        MIXED,
        Against.VLLM,
    ] = None

    def peers(self, names: set[Against], ggufs: list[Path]) -> list[Path | None]:
        """Return the other engines: a GGUF file for each llama-server, None for vLLM.

        Raises:
            ValueError: an engine without mixed batches, or without a path.
        """
        unsupported = names - {"llama-server", "vllm"}
        if unsupported:
            raise ValueError(f"--against {', '.join(sorted(unsupported))}: runs no mixed batches, drop --mixed")
        if "llama-server" in names and (self.llama_server is None or not ggufs):
            raise ValueError("--against llama-server needs --llama-server and --gguf")
        if "vllm" in names and self.vllm_python is None:
            raise ValueError("--against vllm needs --vllm-python")
        return [*(ggufs if "llama-server" in names else ()), *([None] if "vllm" in names else ())]


def bench_mixed(
    loading: Loading,
    models: Mapping[str, str],
    mixed: MixedOptions,
    lanes: int,
    context: int | None,
    rounds: int,
    peers: Sequence[Path | None],
    out: Path | None,
) -> None:
    """Measure the batch on every engine in turns, after a warm-up, and print the table."""
    context = DEFAULT_CONTEXT if context is None else context
    first = next(iter(models))
    loaded = {
        name: loading.load(path, lanes=lanes, context=context, **({} if name == first else {"adapter": None}))
        for name, path in models.items()
    }
    lm = loaded[first]
    requests = mixed_requests(mixed.requests, lm.config.vocab_size, context)
    left_out = set[str]()
    with ExitStack() as stack:
        own_sides = [OwnMixedSide(model, name) for name, model in loaded.items()]
        sides: list[MixedSide] = [*own_sides, *_peers(stack, mixed, peers, lm, context, left_out)]
        runs = [(side.name, partial(side.run, requests, mixed.sampled)) for side in sides]
        in_turns(runs, 1, left_out)  # compiles
        timings = in_turns([run for run in runs if run[0] not in left_out], rounds, left_out)
    late = {side.name: side.late_token(requests) for side in own_sides}
    _print(lm, requests, mixed, lanes, timings, own_sides, late)
    if out is not None:
        seconds = {timing.name: timing.rounds for timing in timings}
        shares = {side.name: {"prefill": side.prefill, "decode": side.decode} for side in own_sides}
        tokens = {"prompts": sum(len(r.prompt) for r in requests), "completions": sum(r.max_tokens for r in requests)}
        figures = {"models": dict(models), "requests": len(requests), "lanes": lanes, "sampled": mixed.sampled}
        figures |= {"context": context, "tokens": tokens, "seconds": seconds, "shares": shares}
        firsts = {name: {"seconds": waited, "steps": steps} for name, (waited, steps) in late.items()}
        write_json(out, figures | {"late": firsts})
    if left_out:
        raise typer.Exit(EXIT_SIDES_FAILED)


def _peers(
    stack: ExitStack, mixed: MixedOptions, peers: Sequence[Path | None], lm: LM, context: int, left_out: set[str]
) -> list[MixedSide]:
    sides, lanes = list[MixedSide](), lm.engine.lanes
    for gguf in peers:
        try:
            if gguf is None:
                assert mixed.vllm_python is not None
                side: MixedSide = VllmSide(mixed.vllm_python, lm.path, lm.engine.dtype, lanes, context)
            else:
                assert mixed.llama_server is not None
                side = LlamaServerSide(mixed.llama_server, gguf, lanes, context)
            sides.append(stack.enter_context(closing(side)))
        except SideFailed as failure:
            leave_out("vllm" if gguf is None else "llama-server", failure, left_out)
    return sides


def _print(
    lm: LM,
    requests: Sequence[MixedRequest],
    mixed: MixedOptions,
    lanes: int,
    timings: Sequence[Timing],
    own_sides: Sequence[OwnMixedSide],
    late: Mapping[str, tuple[float, int]],
) -> None:
    prompts, completions = (sum(sizes) for sizes in zip(*((len(p), count) for p, count in requests), strict=True))
    console = console_for_table()
    console.print(f"{lm!r} on {cores()} cores of {jax.devices()[0].device_kind}, jax {jax.__version__}")
    console.print(
        f"{len(requests)} requests, {lanes} at a time, {'sampled' if mixed.sampled else 'greedy'}: "
        f"{prompts:,} tokens of prompts, {completions:,} of completions"
    )
    table = table_of(
        "mixed",
        "seconds",
        "completion tokens/s",
        "prompt places filled",
        "decode places filled",
        "late first token",
        "hybridlm is faster by",
    )
    shares = {
        side.name: (f"{side.prefill:.0%}", f"{side.decode:.0%}", f"{late[side.name][0]:.2f} s")
        for side in own_sides
        if side.decode is not None
    }
    for timing in timings:
        ratio = timings[0].ratio_text(timing)
        speed = f"{completions / statistics.median(timing.rounds):,.1f}"
        table.add_row(timing.name, f"{timing.seconds:.2f}", speed, *shares.get(timing.name, ("", "", "")), ratio)
    console.print(table)
