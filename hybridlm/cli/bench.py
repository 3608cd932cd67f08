"""`hybridlm bench`: throughput of a model, compared with the machine's limits and with other engines."""

import statistics
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.console import Console
from rich.text import Text

from hybridlm.bench.engine_side import EngineSide
from hybridlm.bench.floor import Traffic, floor_seconds
from hybridlm.bench.limits import MachineLimits, measure_limits
from hybridlm.bench.llama_cpp import LlamaCppSide
from hybridlm.bench.measured import Measured
from hybridlm.bench.plot import plot
from hybridlm.bench.profile import profile
from hybridlm.bench.sides import LeftOut, Side, in_turns
from hybridlm.bench.transformers_side import TransformersSide
from hybridlm.cli import bench_mixed, bench_start
from hybridlm.cli.options import Loading, Model, console_for_table, loads, table_of, write_json
from hybridlm.engine.config import EngineConfig
from hybridlm.errors import require_extra
from hybridlm.files.atomic import replaceable, replacing
from hybridlm.lm import LM

DEFAULT_CONTEXT = 512
DEFAULT_LANES = [1, 2, 4, 8, 16, 32]


class Against(StrEnum):
    """Another engine on the same checkpoint."""

    TRANSFORMERS_BFLOAT16 = "transformers-bfloat16"
    TRANSFORMERS_FLOAT32 = "transformers-float32"
    LLAMA_CPP = "llama.cpp"
    LLAMA_SERVER = "llama-server"
    VLLM = "vllm"


@dataclass(frozen=True, kw_only=True)
class Work:
    """Work that is measured."""

    lanes: Annotated[list[int], typer.Option(min=1, help="Sequences decoded at a time; may be repeated.")] = field(
        default_factory=lambda: list(DEFAULT_LANES)
    )
    tokens: Annotated[int, typer.Option(min=2, help="Steps of each round.")] = 24
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, in each of which every engine has its turn.")] = 3
    prompt: Annotated[int, typer.Option(min=1, help="Tokens per prompt.")] = 32
    prefill: Annotated[
        int, typer.Option(min=0, help="Also prefill and score texts of this many tokens; 0 for neither.")
    ] = 0
    context: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most tokens of a sequence.",
            show_default="512, 2048 with --mixed, or with --start as for generate",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Engines:
    """Other engines and checkpoints."""

    against: Annotated[list[Against] | None, typer.Option(help="Another engine; may be repeated.")] = None
    llama_bench: Annotated[Path | None, typer.Option(help="llama.cpp's llama-batched-bench.")] = None
    gguf: Annotated[
        list[Path] | None,
        typer.Option(help="The checkpoint as llama.cpp's converter or quantiser writes it; may be repeated."),
    ] = None
    beside: Annotated[
        list[str] | None,
        typer.Option(help="Another checkpoint for this library, as a quantised copy of the model; may be repeated."),
    ] = None

    def check(self) -> None:
        """Raise ValueError or MissingExtra unless every engine has its programs."""
        if {Against.LLAMA_SERVER, Against.VLLM} & set(self.against or ()):
            raise ValueError("--against llama-server and vllm run mixed batches; add --mixed")
        if Against.LLAMA_CPP in (self.against or ()) and (self.llama_bench is None or not self.gguf):
            raise ValueError("--against llama.cpp needs --llama-bench and --gguf")
        for engine in set(self.against or []) - {Against.LLAMA_CPP}:
            for package in ("torch", "transformers"):
                require_extra(f"--against {engine}", package, "bench")

    def own_sides(self, model: str) -> dict[str, str]:
        """Return side -> checkpoint, of the sides that this library computes; the model's first."""
        paths = self.beside or []
        sides = {EngineSide.name: model} | {f"{EngineSide.name} {Path(path).name}": path for path in paths}
        if len(sides) <= len(paths):
            raise ValueError(f"--beside: expected folders of different names, got {', '.join(paths)}")
        return sides

    def other_sides(self, lm: LM, lanes: int, prompt: int, context: int) -> list[Side]:
        """Return the sides of the other engines."""
        sides: list[Side] = []
        for engine in self.against or []:
            if engine is Against.LLAMA_CPP:
                assert self.llama_bench is not None
                sides += [LlamaCppSide(self.llama_bench, gguf, lanes, prompt) for gguf in self.gguf or []]
            else:
                sides.append(TransformersSide(lm.path, engine.value.partition("-")[2], lanes, prompt, context))
        return sides


@loads("dtype", "chunk", "kernels", "adapter")
def bench(
    loading: Loading,
    model: Model,
    work: Work,
    engines: Engines,
    mixed: bench_mixed.MixedOptions,
    plot_to: Annotated[Path | None, typer.Option("--plot", help="Write a plot (SVG).")] = None,
    with_profile: Annotated[
        bool,
        typer.Option("--profile", help="Show the time of each part of the model, for decoding and for --prefill."),
    ] = False,
    with_start: Annotated[
        bool,
        typer.Option(
            "--start", help="Measure the first token instead, with an empty cache and with a full one (--rounds times)."
        ),
    ] = False,
    json_to: Annotated[Path | None, typer.Option("--json", help="Write all figures.")] = None,
) -> None:
    """Measure decoding: milliseconds per step, throughput, and the fraction of the machine's limit.

    The machine's limits are measured in the same run. The floor of a step is the time to read its weights and state
    once, or to multiply them, at these limits; "host" is the time that `generate` adds to a step, measured behind
    the steps of each round. Times are medians; every engine has a turn in each round, and ratios are within a round
    (least to most in brackets). Another engine that fails is left out, and the exit status is 3 then.

    With --start, processes of their own load the model and generate one token: the first with an empty cache.

    With --mixed, each engine runs the same requests, which are submitted at once; --against llama-server and vllm.
    """
    lanes, tokens, rounds, prompt, prefill = work.lanes, work.tokens, work.rounds, work.prompt, work.prefill
    for written in (json_to, plot_to):
        if written is not None:
            replaceable(written)  # measuring takes minutes
    modes = {"--start": with_start, "--mixed": mixed.mixed}
    parts = {"--plot": plot_to is not None, "--profile": with_profile, "--prefill": prefill > 0}
    for mode in (mode for mode, chosen in modes.items() if chosen):
        if unused := [name for name, chosen in (modes | parts).items() if chosen and name != mode]:
            raise ValueError(f"{', '.join(unused)}: not measured with {mode}; run a command without {mode}")
    if with_start:
        count = EngineConfig.lanes if lanes == DEFAULT_LANES else max(lanes)
        options = {"lanes": count, "context": work.context, **loading.settings}
        bench_start.bench_start(model, prompt, rounds, json_to, options)
        return
    if mixed.mixed:
        names = {engine.value for engine in engines.against or []}
        peers = mixed.peers(names, engines.gguf or [])
        batch = bench_mixed.MixedBatch(max(lanes), work.context, rounds)
        bench_mixed.bench_mixed(loading, engines.own_sides(model), mixed, batch, peers, json_to)
        return
    context = DEFAULT_CONTEXT if work.context is None else work.context
    most = max(tokens * rounds, prefill) + prompt + tokens
    if most > context:
        raise ValueError(f"context: expected at least {most} for the prompt and all rounds, got {context}")
    engines.check()
    own_sides = engines.own_sides(model)
    limits = measure_limits()
    loaded = {
        name: loading.load(path, lanes=max(lanes), context=context, **({} if path == model else {"adapter": None}))
        for name, path in own_sides.items()
    }
    lm = loaded[EngineSide.name]
    console = console_for_table()
    _print_machine(console, lm, limits)
    traffic = {name: Traffic.of(one.model, one.params, one.engine.row_arrays.dtype) for name, one in loaded.items()}
    found: list[Measured] = []
    left_out = LeftOut()
    for number in lanes:
        sides: list[Side] = [EngineSide(one, number, prompt, name) for name, one in loaded.items()]
        sides += engines.other_sides(lm, number, prompt, context)
        ours = sides[0]
        assert isinstance(ours, EngineSide)
        hosts: list[float] = []
        timings = in_turns(sides, partial(_step_seconds, steps=tokens, ours=ours, hosts=hosts), rounds, left_out)
        floors = {name: floor_seconds(one, limits, number, prompt + tokens) for name, one in traffic.items()}
        floor = floors[ours.name]
        title = f"\n{number} lanes: floor {floor * 1e3:.2f} ms, host {statistics.median(hosts) * 1e3:.2f} ms per step"
        decoded = Measured(
            "decode", number, number, timings, {one.name: floors.get(one.name, floor) for one in timings}
        )
        found.append(decoded)
        _print_rows(console, title, decoded)
        if prefill:
            found += _measure_texts(console, sides, number, prefill, rounds, left_out)
        if with_profile:
            _print_profiles(console, ours, tokens, prefill)
        if json_to is not None:
            machine = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "limits": asdict(limits)}
            figures = {"model": model, "machine": machine, "measured": [one.figures() for one in found]}
            write_json(json_to, figures)
    if plot_to is not None:
        name = f"{lm.path.name} on {jax.devices()[0].device_kind}, jax {jax.__version__}"
        decoding = [one for one in found if one.what == "decode"]
        names = [side.name for side in decoding[0].timings if side.name not in left_out.names]
        speeds = {name: [one.speed(name) for one in decoding] for name in names}
        fractions = {side: [one.of_floor(side) for one in decoding] for side in speeds}
        with replacing(plot_to) as file:
            file.buffer.write(plot(name, lanes, speeds, fractions).encode())
    if left_out.names:
        raise typer.Exit(bench_mixed.EXIT_SIDES_FAILED)


def _step_seconds(side: Side, steps: int, ours: EngineSide, hosts: list[float]) -> float:
    """Return the median seconds of a decode step; what `generate` adds to one of `ours` is appended to `hosts`."""
    seconds = statistics.median(side.decode(steps))
    if side is ours:
        hosts.append(statistics.median(ours.engine_steps(steps)) - seconds)
    return seconds


def _measure_texts(
    console: Console,
    sides: list[Side],
    lanes: int,
    tokens: int,
    rounds: int,
    left_out: LeftOut,
) -> list[Measured]:
    """Measure prefill and scoring; other engines' prefill time is shown beside both."""

    def prefill(side: Side) -> float:
        return side.prefill(tokens)

    def score(side: Side) -> float:
        return side.score(tokens) if isinstance(side, EngineSide) else side.prefill(tokens)

    for side in sides:
        if isinstance(side, EngineSide):
            side.prefill(tokens)
            side.score(tokens)
    found = list[Measured]()
    for what, measure in (("prefill", prefill), ("score", score)):
        found.append(Measured(what, lanes, lanes * tokens, in_turns(sides, measure, rounds, left_out)))
        _print_rows(console, "", found[-1])
    return found


def _print_machine(console: Console, lm: LM, limits: MachineLimits) -> None:
    console.print(Text(f"{lm!r} on {jax.devices()[0].device_kind}, jax {jax.__version__}"))
    console.print(
        Text(
            f"machine: {limits.read_bytes / 1e9:.1f} GB/s read, {limits.float32_flops / 1e9:.0f} GFLOP/s float32, "
            f"{limits.bfloat16_flops / 1e9:.0f} GFLOP/s bfloat16"
        )
    )


def _print_rows(console: Console, title: str, measured: Measured) -> None:
    if title:
        console.print(Text(title))
    table = table_of(measured.what, "ms", "tokens/s", "of floor", "hybridlm is faster by")
    for timing in measured.timings:
        ratio = measured.timings[0].ratio_text(timing)
        part = "" if measured.floors is None else f"{measured.of_floor(timing.name):.0%}"
        speed = f"{measured.speed(timing.name):,.0f}"
        table.add_row(timing.name, f"{timing.seconds * 1e3:.2f}", speed, part, ratio)
    console.print(table)


def _print_profiles(console: Console, ours: EngineSide, tokens: int, prefill: int) -> None:
    profiles = {"a step": profile(ours.program, lambda: sum(ours.decode(tokens)), tokens)}
    if prefill:
        profiles["prefill"] = profile(ours.reading, lambda: ours.prefill(prefill), 1)
        profiles["score"] = profile(ours.scoring, lambda: ours.score(prefill), 1)
    for what, parts in profiles.items():
        total = sum(parts.values())
        cells = ", ".join(f"{name} {duration:.2f} ({duration / total:.0%})" for name, duration in parts.items())
        console.print(Text(f"ms of {what} by part: {cells}"))
