"""`hybridlm inspect`: a report on one step, as text or HTML page."""

import math
import warnings
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.progress import track

from hybridlm.checkpoint import CheckpointDirectory, open_checkpoint, resolve
from hybridlm.checkpoint.stored_weights import stored_weights
from hybridlm.cli.options import Loading, Model, console_for_table, loads, table_of
from hybridlm.engine.config import STEP_OPTIONS
from hybridlm.engine.engine import Engine, StepKind
from hybridlm.files.atomic import replaceable, replacing
from hybridlm.programs.shapes import Shape
from hybridlm.progress import counting_progress
from hybridlm.rows.pool import RowPool
from hybridlm.steps.operands import Batch, Feed
from hybridlm.target_report import target_engine
from ir_passes import CertificationWarning
from ir_passes.compile.inspect_page import inspect_page
from ir_passes.measure.dependence import measured_dependence
from ir_passes.targets import read_target


@loads(*STEP_OPTIONS)
def inspect(
    loading: Loading,
    model: Model,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained HTML page.")] = None,
    step: Annotated[
        StepKind, typer.Option(help="One token at a time, prompts in chunks, or scoring in chunks.")
    ] = "decode",
    weights: Annotated[
        bool,
        typer.Option("--weights", help="List the tensors of the checkpoint instead: scheme, size, signs of damage."),
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(
            help="Compile the step for this machine, which need not be there: nvidia-h100, tpu-v5e:8; lanes are split "
            "over its devices unless --mesh says otherwise.",
            metavar="NAME",
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            help="For --html: run the step once per lane with its input changed, to see what depends on it; without "
            "--mesh and --target."
        ),
    ] = True,
) -> None:
    """Show the proof and audit of one step, its scratch by lane, pools and copies.

    A step with faults is shown with the faults. The text begins with the state of one sequence: a formula for the size
    of every array of a layer. With --target nothing runs, and the page shows the largest kernels with their bytes and
    pools.
    """
    if weights:
        options = {"--html": html is not None, "--target": target is not None, "--step": step != "decode"}
        options |= {"--no-measure": not measure, **loading.chosen}
        if any(options.values()):
            names = ", ".join(name for name, used in options.items() if used)
            raise ValueError(f"{names}: not with --weights, which lists tensors")
        _list_weights(model)
        return
    if html is not None:
        replaceable(html)
    elif not measure:
        raise ValueError("--no-measure: expected --html with it")
    if target is None:
        engine = loading.load(model, certify="warn").engine
    else:
        engine = target_engine(read_target(target), loading.config(), model=model, mesh=loading.mesh_sizes)
    decoder = engine.row_arrays.model
    shape = engine.full_shape(step)
    with warnings.catch_warnings(), counting_progress(None, f"compiling {shape} for {target or 'here'}", 1):
        warnings.simplefilter("ignore", CertificationWarning)
        compiled = engine.program(shape)
    if html is None:
        typer.echo("\n".join((*decoder.state_size(engine.row_arrays.dtype).lines, "", str(shape), compiled.report())))
        return
    title = f"{decoder.config.family}, {shape}{'' if target is None else f' for {target}'}"
    runs = measure and target is None and engine.placement.mesh is None
    measured = measured_dependence(compiled, _filled(engine, shape), compiled.bound) if runs else None
    with replacing(html) as file:
        file.buffer.write(inspect_page(title, compiled, measured=measured).encode())
    typer.echo(f"{html}: {title}, {compiled.certificate.state}")


def _list_weights(model: str) -> None:
    checkpoint = open_checkpoint(resolve(model))
    if not isinstance(checkpoint, CheckpointDirectory):
        raise ValueError(f"--weights: expected a checkpoint in Hugging Face's layout, {model} was written by LM.save")
    headings = ("weight", "stored as", "shape", "MB", "bits", "rows of zeros", "clipped groups", "not finite")
    table = table_of(*headings, text_columns=2, title=str(checkpoint.path), overflow="fold")
    total = numbers = wrong = 0
    for weight in track(stored_weights(checkpoint), "reading", len(list(checkpoint.names)), transient=True):
        total, numbers, wrong = total + weight.bytes, numbers + math.prod(weight.shape), wrong + weight.not_finite
        zero, clipped = ("" if count is None else f"{count:,}" for count in (weight.zero_rows, weight.clipped_groups))
        bits = 8 * weight.bytes / max(math.prod(weight.shape), 1)
        shape = " x ".join(map(str, weight.shape))
        counts = f"{weight.bytes / 1e6:,.3f}", f"{bits:.2f}", zero, clipped, f"{weight.not_finite:,}"
        style = "red" if weight.lost or weight.not_finite else None
        table.add_row(weight.name, weight.stored_as, shape, *counts, style=style)
    console_for_table(200).print(table)
    typer.echo(f"{numbers:,} weights in {total / 1e6:,.1f} MB, {8 * total / max(numbers, 1):.2f} bits each")
    if wrong:
        typer.echo(f"{wrong:,} weights are NaN or infinite: results that they take part in are refused", err=True)


def _filled(engine: Engine, shape: Shape) -> tuple[Any, ...]:
    """Return arguments of a step: every lane continues its row, chunks lack one token."""
    params, rows, inputs = engine.example_arguments(shape)
    rng = np.random.default_rng(0)

    def filled(row: jax.ShapeDtypeStruct) -> jax.Array:
        floating = jnp.issubdtype(row.dtype, jnp.floating)
        return jnp.asarray(rng.normal(size=row.shape) if floating else np.zeros(row.shape), row.dtype)

    feed = Feed((1,) * max(1, shape.tokens - 1), 1)
    pool = RowPool(rows, shape.pages, shape.blocks)
    _, (_, slots, pages) = pool.arrange([pool.acquire(shape.tokens + 1) for _ in range(shape.lanes)], shape.lanes)
    inputs = inputs._replace(batch=Batch.of([feed] * shape.lanes, shape.tokens, slots, pages))
    return params, jax.tree.map(filled, rows), inputs
