"""`hybridlm bench --start`: the table of a model's first token."""

import statistics
from pathlib import Path
from typing import Any

import jax
import typer

from hybridlm.bench.start import measure_starts
from hybridlm.cli.options import console_for_table, table_of, write_json
from hybridlm.devices.machine import cores


def bench_start(model: str, prompt: int, rounds: int, out: Path | None, settings: dict[str, Any]) -> None:
    """Measure one cold start and `rounds` warm ones, and print their parts."""
    cold, warm = measure_starts(model, prompt, settings, rounds)
    table = table_of("part", "cold, s", "warm, s")
    for part in dict.fromkeys((*cold["parts"], *warm[0]["parts"])):
        table.add_row(part, _text(cold["parts"].get(part)), _text(_median([run["parts"].get(part) for run in warm])))
    totals = [run["total"] for run in warm]
    spread = f" ({min(totals):.2f}-{max(totals):.2f})" if rounds > 1 else ""
    table.add_row("total", _text(cold["total"]), _text(statistics.median(totals)) + spread, style="bold")
    console = console_for_table()
    console.print(f"{model} on {cores()} cores of {jax.devices()[0].device_kind}, jax {jax.__version__}")
    console.print(table)
    console.print("steps, which are loaded or compiled in threads, in seconds:")
    names = ("trace", "prove", "rewrite", "lower", "compile", "audit", "keep")
    steps = table_of("step", *names, "from the store")
    for step in dict.fromkeys((*cold["steps"], *(step for run in warm for step in run["steps"]))):
        cold_seconds = cold["steps"].get(step, {"seconds": {}})["seconds"]
        loaded = [run["steps"].get(step, {"seconds": {}})["seconds"].get("load") for run in warm]
        steps.add_row(step, *(_text(cold_seconds.get(name)) for name in names), _text(_median(loaded)))
    console.print(steps)
    compiled = sum(not step["stored"] for run in warm for step in run["steps"].values())
    typer.echo(f"compiled by the warm starts: {compiled} steps")
    if out is not None:
        figures = {"model": model, "cores": cores(), "jax": jax.__version__, "settings": settings, "prompt": prompt}
        write_json(out, {**figures, "cold": cold, "warm": warm})


def _median(values: list[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if numbers else None


def _text(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f}"
