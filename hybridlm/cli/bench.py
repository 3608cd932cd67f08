"""`hybridlm bench`: throughput of a model, compared with the machine's limits and with other engines."""

import statistics
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hybridlm.bench.engine_side import EngineSide
from hybridlm.bench.floor import Traffic, floor_seconds
from hybridlm.bench.limits import Limits, measure_limits
from hybridlm.bench.llama_cpp import LlamaCppSide
from hybridlm.bench.plot import plot
from hybridlm.bench.profile import profile
from hybridlm.bench.sides import Side, Timing, in_turns
from hybridlm.bench.transformers_side import TransformersSide
from hybridlm.cli import bench_start
from hybridlm.cli.options import Loading, Model, console_for_table, loads
from hybridlm.errors import require_extra
from hybridlm.lm import LM

DEFAULT_CONTEXT = 512
DEFAULT_LANES = [1, 2, 4, 8, 16, 32]


class Against(StrEnum):
    """Another engine on the same checkpoint."""

    TRANSFORMERS_BFLOAT16 = "transformers-bfloat16"
    TRANSFORMERS_FLOAT32 = "transformers-float32"
    LLAMA_CPP = "llama.cpp"


@loads("dtype", "chunk", "kernels", "adapter")
def bench(
    loading: Loading,
    model: Model,
    lanes: Annotated[
        list[int], typer.Option(min=1, help="Sequences decoded at a time; may be repeated.")
    ] = DEFAULT_LANES,
    tokens: Annotated[int, typer.Option(min=2, help="Steps of each round.")] = 24,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, in each of which every engine has its turn.")] = 3,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens per prompt.")] = 32,
    prefill: Annotated[
        int, typer.Option(min=0, help="Also prefill and score texts of this many tokens; 0 for neither.")
    ] = 0,
    against: Annotated[list[Against] | None, typer.Option(help="Another engine; may be repeated.")] = None,
    llama_bench: Annotated[Path | None, typer.Option(help="llama.cpp's llama-batched-bench.")] = None,
    gguf: Annotated[Path | None, typer.Option(help="The checkpoint as llama.cpp's converter writes it.")] = None,
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
    json_to: Annotated[Path | None, typer.Option("--json", help="With --start: write all figures.")] = None,
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Most tokens of a sequence.", show_default="512, or with --start as for generate"),
    ] = None,
) -> None:
    """Measure decoding: milliseconds per step, throughput, and the fraction of the machine's limit.

    The machine's limits are measured in the same run. The floor of a step is the time to read its weights and state
    once, or to multiply them, at these limits; "host" is the time that `generate` adds to a step. Times are medians;
    every engine has a turn in each round, and ratios are within a round (least to most in brackets).

    With --start, processes of their own load the model and generate one token: the first with an empty cache.
    """
    if with_start:
        most = bench_start.DEFAULT_LANES if lanes == DEFAULT_LANES else max(lanes)
        given = {name: loading.settings[name] for name in ("dtype", "chunk", "kernels")}
        bench_start.bench_start(model, prompt, rounds, json_to, lanes=most, context=context, **given)
        return
    if json_to is not None:
        raise ValueError("--json: is written with --start only")
    context = DEFAULT_CONTEXT if context is None else context
    most = max(tokens * rounds, prefill) + prompt + tokens
    if most > context:
        raise ValueError(f"context: expected at least {most} for the prompt and all rounds, got {context}")
    if against and Against.LLAMA_CPP in against and (llama_bench is None or gguf is None):
        raise ValueError("--against llama.cpp needs --llama-bench and --gguf")
    for one in set(against or []) - {Against.LLAMA_CPP}:
        for package in ("torch", "transformers"):
            require_extra(f"--against {one}", package, "bench")
    limits = measure_limits()
    lm = loading.load(model, lanes=max(lanes), context=context)
    console = console_for_table()
    _print_machine(console, lm, limits)
    traffic = Traffic.of(lm.model, lm.params, lm._cache_dtype)
    speeds: dict[str, list[float]] = {}
    fractions: dict[str, list[float]] = {}
    for number in lanes:
        ours = EngineSide(lm, number, prompt)
        sides: list[Side] = [ours, *_others(against or [], lm, number, prompt, context, llama_bench, gguf)]
        timings = in_turns(sides, lambda side: statistics.median(side.decode(tokens)), rounds)
        floor = floor_seconds(traffic, limits, number, prompt + tokens)
        host = statistics.median(ours.engine_steps(tokens)) - timings[0].seconds
        for timing in timings:
            speeds.setdefault(timing.name, []).append(number / timing.seconds)
            fractions.setdefault(timing.name, []).append(floor / timing.seconds)
        title = f"\n{number} lanes: floor {floor * 1e3:.2f} ms, host {host * 1e3:.2f} ms per step"
        _print_rows(console, title, timings, number, "decode", floor)
        if prefill:
            _measure_texts(console, sides, ours, number, prefill, rounds)
        if with_profile:
            _print_profiles(console, ours, tokens, prefill)
    if plot_to is not None:
        name = f"{lm.path.name} on {jax.devices()[0].device_kind}, jax {jax.__version__}"
        plot_to.write_text(plot(name, lanes, speeds, fractions), encoding="utf-8")


def _others(
    against: list[Against], lm: LM, lanes: int, prompt: int, context: int, program: Path | None, gguf: Path | None
) -> list[Side]:
    sides: list[Side] = []
    for one in against:
        if one is Against.LLAMA_CPP:
            assert program is not None and gguf is not None
            sides.append(LlamaCppSide(program, gguf, lanes, prompt))
        else:
            sides.append(TransformersSide(lm.path, one.value.partition("-")[2], lanes, prompt, context))
    return sides


def _measure_texts(console: Console, sides: list[Side], ours: EngineSide, lanes: int, tokens: int, rounds: int) -> None:
    """Measure prefill and scoring; other engines' prefill time is shown beside both."""

    def turns(measure: Callable[[], float]) -> list[Timing]:
        return in_turns(sides, lambda side: measure() if side is ours else side.prefill(tokens), rounds)

    for warm_up in (ours.prefill, ours.score):
        warm_up(tokens)
    for what, measure in (("prefill", ours.prefill), ("score", ours.score)):
        _print_rows(console, "", turns(lambda measure=measure: measure(tokens)), lanes * tokens, what, None)


def _print_machine(console: Console, lm: LM, limits: Limits) -> None:
    console.print(Text(f"{lm!r} on {jax.devices()[0].device_kind}, jax {jax.__version__}"))
    console.print(
        Text(
            f"machine: {limits.read_bytes / 1e9:.1f} GB/s read, {limits.float32_flops / 1e9:.0f} GFLOP/s float32, "
            f"{limits.bfloat16_flops / 1e9:.0f} GFLOP/s bfloat16"
        )
    )


def _print_rows(
    console: Console, title: str, timings: list[Timing], tokens: int, what: str, floor: float | None
) -> None:
    if title:
        console.print(Text(title))
    table = Table()
    for heading in (what, "ms", "tokens/s", "of floor", "hybridlm is faster by"):
        table.add_column(heading, justify="left" if heading == what else "right")
    for timing in timings:
        ratio = ""
        if timing is not timings[0]:
            median, least, most = timings[0].ratio(timing)
            ratio = f"{median:.2f} ({least:.2f}-{most:.2f})"
        part = "" if floor is None else f"{floor / timing.seconds:.0%}"
        table.add_row(timing.name, f"{timing.seconds * 1e3:.2f}", f"{tokens / timing.seconds:,.0f}", part, ratio)
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
