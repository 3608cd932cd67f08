"""`hybridlm bench`: throughput, compared with the machine's limits and other engines."""

import statistics
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import jax
import typer
from rich.console import Console

from hybridlm.bench.engine_side import EngineSide
from hybridlm.bench.limits import measure_limits
from hybridlm.bench.llama_cpp import LlamaCppSide
from hybridlm.bench.plot import plot
from hybridlm.bench.profile import profile
from hybridlm.bench.sides import MIXED, MODES, START, STEPS, Against, Measured, in_turns
from hybridlm.bench.transformers_side import TransformersSide
from hybridlm.cli import bench_mixed, bench_start
from hybridlm.cli.options import Loading, Model, console_for_table, loads, table_of, write_json
from hybridlm.engine.config import EngineConfig
from hybridlm.errors import require_extra
from hybridlm.files.atomic import replaceable, replacing
from hybridlm.lm import LM
from hybridlm.target_report.step_report import floor_of

Side = EngineSide | LlamaCppSide | TransformersSide
DEFAULT_CONTEXT = 512
DEFAULT_LANES = [1, 2, 4, 8, 16, 32]


@dataclass(frozen=True, kw_only=True)
class Work:
    """Sizes, figures and files of a benchmark; options without a mode apply to all."""

    lanes: Annotated[list[int], typer.Option(min=1, help="Sequences decoded at a time; may be repeated.")] = field(
        default_factory=lambda: list(DEFAULT_LANES)
    )
    tokens: Annotated[int, typer.Option(min=2, help="Steps of each round."), STEPS] = 24
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, in each of which every engine has its turn.")] = 3
    prompt: Annotated[int, typer.Option(min=1, help="Tokens per prompt."), STEPS, START] = 32
    prefill: Annotated[
        int, typer.Option(min=0, help="Also prefill and score texts of this many tokens; 0 for neither."), STEPS
    ] = 0
    context: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most tokens of a sequence.",
            show_default="512, 2048 with --mixed, or with --start as for generate",
        ),
    ] = None
    plot: Annotated[Path | None, typer.Option(help="Write a plot (SVG)."), STEPS] = None
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Show the time of each part of the model, for decoding and for --prefill."),
        STEPS,
    ] = False
    start: Annotated[
        bool,
        typer.Option(
            "--start", help="Measure the first token instead, with an empty cache and with a full one (--rounds times)."
        ),
        START,
    ] = False
    json: Annotated[Path | None, typer.Option(help="Write all figures.")] = None


@dataclass(frozen=True, kw_only=True)
class Engines:
    """Other engines and checkpoints; some options are for certain engines."""

    against: Annotated[list[Against] | None, typer.Option(help="Another engine; may be repeated."), STEPS, MIXED] = None
    llama_bench: Annotated[
        Path | None, typer.Option(help="llama.cpp's llama-batched-bench."), STEPS, Against.LLAMA_CPP
    ] = None
    gguf: Annotated[
        list[Path] | None,
        typer.Option(help="The checkpoint as llama.cpp's converter or quantiser writes it; may be repeated."),
        STEPS, MIXED, Against.LLAMA_CPP, Against.LLAMA_SERVER,
    ] = None  # fmt: skip
    beside: Annotated[
        list[str] | None,
        typer.Option(help="Another checkpoint for this library, as a quantised copy; may be repeated."),
        STEPS, MIXED,
    ] = None  # fmt: skip

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
        """Return the checkpoints of this library's sides by name, the model first."""
        paths = self.beside or []
        sides = {EngineSide.name: model} | {f"{EngineSide.name} {Path(path).name}": path for path in paths}
        if len(sides) <= len(paths):
            raise ValueError(f"--beside: expected folders of different names, got {', '.join(paths)}")
        return sides

    def other_sides(self, lm: LM, lanes: int, prompt: int, context: int) -> list[Side]:
        sides: list[Side] = []
        for engine in self.against or []:
            if engine is Against.LLAMA_CPP:
                assert self.llama_bench is not None
                sides += [LlamaCppSide(self.llama_bench, gguf, lanes, prompt) for gguf in self.gguf or []]
            else:
                sides.append(TransformersSide(lm.path, engine.value.partition("-")[2], lanes, prompt, context))
        return sides


def _check_options(work: Work, engines: Engines, mixed: bench_mixed.MixedOptions) -> None:
    """Raise ValueError or OSError for unusable files and options."""
    for file in (work.json, work.plot):
        if file is not None:
            replaceable(file)
    chosen = _chosen_options(work, engines, mixed)
    mode = next((mode for mode in (START, MIXED) if mode in chosen), STEPS)
    unused = [flag for flag, marks in chosen.items() if mode not in marks and not set(MODES).isdisjoint(marks)]
    if unused:
        reason = f"not measured with {mode}; run a command without {mode}" if mode else "only with --mixed"
        raise ValueError(f"{', '.join(sorted(unused))}: {reason}")
    for flag, marks in chosen.items():
        users = set(Against) & set(marks)
        if users and users.isdisjoint(engines.against or ()):
            raise ValueError(f"{flag}: expected --against {' or '.join(sorted(users))} with it")
    if mode and "--lanes" in chosen and len(work.lanes) > 1:
        raise ValueError(f"--lanes: expected one number with {mode}, got {', '.join(map(str, work.lanes))}")


def _chosen_options(*groups: Any) -> dict[str, tuple[str, ...]]:
    """Return modes and engines of options with other values than their defaults, by flag."""
    chosen: dict[str, tuple[str, ...]] = {}
    for group in groups:
        for name, hint in get_type_hints(type(group), include_extras=True).items():
            _, _, *marks = get_args(hint)
            value = getattr(group, name)
            if value != getattr(type(group)(), name) and value != []:
                chosen[f"--{name.replace('_', '-')}"] = tuple(marks)
    return chosen


@loads("dtype", "chunk", "kernels", "adapter")
def bench(loading: Loading, model: Model, work: Work, engines: Engines, mixed: bench_mixed.MixedOptions) -> None:
    """Measure decoding: milliseconds per step, throughput, and the fraction of the machine's limit.

    The floor of a step is the time to read its weights and state once, or to multiply them, at limits that are measured
    in the same run; "host" is the time that `generate` adds to a step. Times are medians; every engine has a turn in
    each round, and ratios are within a round (lowest to highest in brackets). Another engine that fails is left out,
    with exit status 3.

    With --start, new processes load the model and generate one token: the first with an empty cache.

    With --mixed, each engine runs the same requests, which are submitted at once; --against llama-server and vllm.
    """
    _check_options(work, engines, mixed)
    if work.start:
        count = EngineConfig.lanes if work.lanes == DEFAULT_LANES else max(work.lanes)
        options = {"lanes": count, "context": work.context, **loading.settings}
        bench_start.bench_start(model, work.prompt, work.rounds, work.json, options)
    elif mixed.mixed:
        peers = mixed.peers(set(engines.against or ()), engines.gguf or [])
        own_sides, lanes = engines.own_sides(model), max(work.lanes)
        bench_mixed.bench_mixed(loading, own_sides, mixed, lanes, work.context, work.rounds, peers, work.json)
    else:
        _bench_steps(loading, model, work, engines)


def _bench_steps(loading: Loading, model: str, work: Work, engines: Engines) -> None:
    context = DEFAULT_CONTEXT if work.context is None else work.context
    size = max(work.tokens * work.rounds, work.prefill) + work.prompt + work.tokens
    if size > context:
        raise ValueError(f"context: expected at least {size} for the prompt and all rounds, got {context}")
    engines.check()
    paths = engines.own_sides(model)
    limits = measure_limits()
    models = {
        name: loading.load(path, lanes=max(work.lanes), context=context, **({} if path == model else {"adapter": None}))
        for name, path in paths.items()
    }
    lm = models[EngineSide.name]
    console = console_for_table()
    device = f"{jax.devices()[0].device_kind}, jax {jax.__version__}"
    console.print(f"{lm!r} on {device}")
    console.print(
        f"machine: {limits.read_bytes / 1e9:.1f} GB/s read, {limits.float32_flops / 1e9:.0f} GFLOP/s float32, "
        f"{limits.bfloat16_flops / 1e9:.0f} GFLOP/s bfloat16"
    )
    measured: list[Measured] = []
    left_out = set[str]()
    for number in work.lanes:
        own_sides = [EngineSide(lm, number, work.prompt, name) for name, lm in models.items()]
        sides: list[Side] = [*own_sides, *engines.other_sides(lm, number, work.prompt, context)]
        hosts: list[float] = []
        runs = [(side.name, partial(_step_seconds, side, work.tokens, own_sides[0], hosts)) for side in sides]
        timings = in_turns(runs, work.rounds, left_out)
        shape, floors = lm.engine.shape("generate", number, 1, number), dict[str, float]()
        for name, each in models.items():
            floor_of_step = floor_of(each.engine, shape, work.prompt + work.tokens)
            assert floor_of_step is not None
            floors[name] = limits.floor_seconds(floor_of_step)
        floor = floors[EngineSide.name]
        floors |= {timing.name: floor for timing in timings if timing.name not in floors}
        measured.append(Measured("decode", number, number, timings, floors))
        host = statistics.median(hosts)
        console.print(f"\n{number} lanes: floor {floor * 1e3:.2f} ms, host {host * 1e3:.2f} ms per step")
        _print_rows(console, measured[-1])
        if work.prefill:
            measured += _measure_texts(console, sides, number, work, left_out)
        if work.profile:
            _print_profiles(console, own_sides[0], work)
        if work.json is not None:
            machine = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "limits": asdict(limits)}
            figures = {"model": model, "machine": machine, "measured": [each.figures() for each in measured]}
            write_json(work.json, figures)
    if work.plot is not None:
        decoded = [each for each in measured if each.kind == "decode"]
        names = [timing.name for timing in decoded[0].timings if timing.name not in left_out]
        speeds = {name: [each.speed(name) for each in decoded] for name in names}
        fractions = {name: [each.of_floor(name) for each in decoded] for name in names}
        with replacing(work.plot) as file:
            file.buffer.write(plot(f"{lm.path.name} on {device}", work.lanes, speeds, fractions).encode())
    if left_out:
        raise typer.Exit(bench_mixed.EXIT_SIDES_FAILED)


def _step_seconds(side: Side, steps: int, engine: EngineSide, hosts: list[float]) -> float:
    seconds = statistics.median(side.decode(steps))
    if side is engine:
        hosts.append(statistics.median(engine.engine_steps(steps)) - seconds)
    return seconds


def _measure_texts(console: Console, sides: list[Side], lanes: int, work: Work, left_out: set[str]) -> list[Measured]:
    """Measure prefill and scoring; other engines' prefill time is in both tables."""
    tokens = work.prefill

    def prefill(side: Side) -> float:
        return side.prefill(tokens)

    def score(side: Side) -> float:
        return side.score(tokens) if isinstance(side, EngineSide) else side.prefill(tokens)

    for side in sides:
        if isinstance(side, EngineSide):
            side.prefill(tokens)
            side.score(tokens)
    measured = list[Measured]()
    for kind, measure in (("prefill", prefill), ("score", score)):
        timings = in_turns([(side.name, partial(measure, side)) for side in sides], work.rounds, left_out)
        measured.append(Measured(kind, lanes, lanes * tokens, timings))
        _print_rows(console, measured[-1])
    return measured


def _print_rows(console: Console, measured: Measured) -> None:
    table = table_of(measured.kind, "ms", "tokens/s", "of floor", "hybridlm is faster by")
    for timing in measured.timings:
        ratio = measured.timings[0].ratio_text(timing)
        part = "" if measured.floors is None else f"{measured.of_floor(timing.name):.0%}"
        speed = f"{measured.speed(timing.name):,.0f}"
        table.add_row(timing.name, f"{timing.seconds * 1e3:.2f}", speed, part, ratio)
    console.print(table)


def _print_profiles(console: Console, engine: EngineSide, work: Work) -> None:
    profiles = {"a step": profile(engine.program, lambda: sum(engine.decode(work.tokens)), work.tokens)}
    if work.prefill:
        profiles["prefill"] = profile(engine.reading, lambda: engine.prefill(work.prefill), 1)
        profiles["score"] = profile(engine.scoring, lambda: engine.score(work.prefill), 1)
    for name, parts in profiles.items():
        total = sum(parts.values())
        cells = ", ".join(f"{part} {duration:.2f} ({duration / total:.0%})" for part, duration in parts.items())
        console.print(f"ms of {name} by part: {cells}")
