"""`hybridlm bench --mixed`: the table of a mixed batch."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.text import Text

from hybridlm.bench.llama_server import LlamaServerSide
from hybridlm.bench.mixed import MixedRequest, MixedSide, OwnMixedSide, mixed_requests
from hybridlm.bench.sides import LeftOut, SideFailed, Timing, in_turns
from hybridlm.bench.vllm_side import VllmSide
from hybridlm.cli.options import Loading, console_for_table, table_of, write_json
from hybridlm.devices.machine import cores
from hybridlm.lm import LM

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
    ] = False
    requests: Annotated[int, typer.Option(min=1, help="Requests of a mixed batch.")] = 64
    sampled: Annotated[
        bool, typer.Option("--sampled", help="Sample the mixed batch: temperature 0.6, top_p 0.95, top_k 20.")
    ] = False
    llama_server: Annotated[Path | None, typer.Option(help="llama.cpp's llama-server, for --mixed.")] = None
    vllm_python: Annotated[Path | None, typer.Option(help="Python of an environment with vLLM, for --mixed.")] = None

    def peers(self, names: set[str], ggufs: list[Path]) -> "Peers":
        """Return the other engines.

        Args:
            names: values of --against.
            ggufs: the checkpoint in the format of llama.cpp.

        Raises:
            ValueError: an engine cannot run mixed batches, or the path of one is missing.
        """
        unsupported = names - {"llama-server", "vllm"}
        if unsupported:
            raise ValueError(f"--against {', '.join(sorted(unsupported))}: runs no mixed batches, drop --mixed")
        if "llama-server" in names and (self.llama_server is None or not ggufs):
            raise ValueError("--against llama-server needs --llama-server and --gguf")
        if "vllm" in names and self.vllm_python is None:
            raise ValueError("--against vllm needs --vllm-python")
        server = self.llama_server if "llama-server" in names else None
        return Peers(server, ggufs, self.vllm_python if "vllm" in names else None)


@dataclass(frozen=True)
class MixedBatch:
    """Sequences at a time, maximum tokens of one (None for `DEFAULT_CONTEXT`), and measured rounds."""

    lanes: int
    context: int | None
    rounds: int


@dataclass(frozen=True)
class Peers:
    """Other engines on the same checkpoint; None without the engine.

    Attributes:
        llama_server, ggufs: the server's program, and the checkpoint in its format.
        vllm_python: Python of an environment with vLLM.
    """

    llama_server: Path | None
    ggufs: list[Path]
    vllm_python: Path | None


def bench_mixed(
    loading: Loading, models: Mapping[str, str], mixed: MixedOptions, batch: MixedBatch, peers: Peers, out: Path | None
) -> None:
    """Measure the batch on every engine in turns, after a warm-up, and print the table.

    Args:
        loading: options of `hybridlm.load`.
        models: name in the table -> checkpoint; the first one is compared with all others.
        mixed, batch, peers: the requests, how they run, and the other engines.
        out: JSON file for all figures; None for none.
    """
    context = DEFAULT_CONTEXT if batch.context is None else batch.context
    first = next(iter(models))
    loaded = {
        name: loading.load(path, lanes=batch.lanes, context=context, **({} if name == first else {"adapter": None}))
        for name, path in models.items()
    }
    lm = loaded[first]
    requests = mixed_requests(mixed.requests, lm.config.vocab_size, context)
    left_out = LeftOut()
    with ExitStack() as stack:
        own_sides = [OwnMixedSide(model, name) for name, model in loaded.items()]
        sides: list[MixedSide] = [*own_sides, *_peers(stack, peers, lm, batch.lanes, context, left_out)]
        in_turns(sides, lambda side: side.run(requests, mixed.sampled), 1, left_out)  # compiles
        sides = [side for side in sides if side.name not in left_out.names]
        timings = in_turns(sides, lambda side: side.run(requests, mixed.sampled), batch.rounds, left_out)
    _print(lm, requests, mixed, batch.lanes, timings, own_sides)
    if out is not None:
        seconds = {timing.name: timing.rounds for timing in timings}
        shares = {side.name: {"prefill": side.prefill, "decode": side.decode} for side in own_sides}
        tokens = {"prompts": sum(len(r.prompt) for r in requests), "completions": sum(r.max_tokens for r in requests)}
        figures = {"models": dict(models), "requests": len(requests), "lanes": batch.lanes, "sampled": mixed.sampled}
        write_json(out, {**figures, "context": context, "tokens": tokens, "seconds": seconds, "shares": shares})
    if left_out.names:
        raise typer.Exit(EXIT_SIDES_FAILED)


def _peers(stack: ExitStack, peers: Peers, lm: LM, lanes: int, context: int, left_out: LeftOut) -> list[MixedSide]:
    """Start the other engines; leave out failing engines."""
    starts: list[tuple[str, Callable[[], MixedSide]]] = []
    if peers.llama_server is not None:
        server = partial(LlamaServerSide, peers.llama_server, lanes=lanes, context=context)
        starts += [("llama-server", partial(server, gguf)) for gguf in peers.ggufs]
    if peers.vllm_python is not None:
        starts.append(("vllm", partial(VllmSide, peers.vllm_python, lm.path, lm.engine.dtype, lanes, context)))
    sides: list[MixedSide] = []
    for name, start in starts:
        try:
            sides.append(stack.enter_context(closing(start())))
        except SideFailed as failure:
            left_out(name, failure)
    return sides


def _print(
    lm: LM,
    requests: Sequence[MixedRequest],
    mixed: MixedOptions,
    lanes: int,
    timings: Sequence[Timing],
    own_sides: Sequence[OwnMixedSide],
) -> None:
    """Print the batch, and seconds, speed and shares of real tokens of each engine."""
    prompts, completions = (sum(sizes) for sizes in zip(*((len(p), count) for p, count in requests), strict=True))
    console = console_for_table()
    console.print(Text(f"{lm!r} on {cores()} cores of {jax.devices()[0].device_kind}, jax {jax.__version__}"))
    console.print(
        Text(
            f"{len(requests)} requests, {lanes} at a time, {'sampled' if mixed.sampled else 'greedy'}: "
            f"{prompts:,} tokens of prompts, {completions:,} of completions"
        )
    )
    table = table_of(
        "mixed",
        "seconds",
        "completion tokens/s",
        "prompt places filled",
        "decode places filled",
        "hybridlm is faster by",
    )
    shares = {side.name: (f"{side.prefill:.0%}", f"{side.decode:.0%}") for side in own_sides if side.decode is not None}
    for timing in timings:
        ratio = timings[0].ratio_text(timing)
        speed = f"{completions / statistics.median(timing.rounds):,.1f}"
        table.add_row(timing.name, f"{timing.seconds:.2f}", speed, *shares.get(timing.name, ("", "")), ratio)
    console.print(table)
