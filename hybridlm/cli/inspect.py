"""`hybridlm inspect`: report on one step of a model, as text or as an HTML page."""

import warnings
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer

from hybridlm.cli.options import Chunk, Context, Debug, Dtype, Lanes, Model, reported
from hybridlm.engine.engine import Engine
from hybridlm.files.atomic import replaceable, replacing
from hybridlm.loading import load
from hybridlm.programs.shapes import Shape
from hybridlm.steps.operands import Batch, Feed
from hybridlm.target_report import target_engine
from ir_passes import CertificationWarning
from ir_passes.compile.inspect_page import inspect_page
from ir_passes.measure.dependence import measured_dependence
from ir_passes.targets import read_target


class StepKind(StrEnum):
    """A step at the largest number of lanes."""

    DECODE = "decode"
    PROMPT = "prompt"
    SCORE = "score"


def inspect(
    model: Model,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained HTML page.")] = None,
    step: Annotated[
        StepKind, typer.Option(help="One token at a time, prompts in chunks, or scoring in chunks.")
    ] = StepKind.DECODE,
    lanes: Lanes = 8,
    context: Context = None,
    dtype: Dtype = None,
    chunk: Chunk = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Compile the step for this machine, which need not be there: nvidia-h100, tpu-v5e.",
            metavar="NAME",
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(help="For --html: run the step once per lane with its input changed, to see what depends on it."),
    ] = True,
    debug: Debug = False,
) -> None:
    """Show what is proved and audited about one step, its scratch by lane, its pools and their copies.

    A step with faults is shown with the faults. The text begins with the state of one sequence: a formula for the size
    of every array of a layer. With --target nothing runs, and the page shows the largest kernels, what each moves and
    which pools it touches.
    """
    with reported(debug):
        if html is not None:
            replaceable(html)
        sizes = {"lanes": lanes, "context": context, "dtype": dtype, "chunk": chunk}
        if target is None:
            engine = load(model, certify="warn", **sizes).engine
        else:
            engine = target_engine(read_target(target), model=model, **sizes)
        decoder = engine.row_arrays.model
        shape = _shape(engine, step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CertificationWarning)
            compiled = engine.program(shape)
        if html is None:
            typer.echo(
                "\n".join((*decoder.state_size(engine.row_arrays.dtype).lines, "", str(shape), compiled.report()))
            )
            return
        title = f"{decoder.config.family}, {shape}{'' if target is None else f' for {target}'}"
        runs = measure and target is None
        measured = measured_dependence(compiled, _filled(engine, shape), compiled.bound) if runs else None
        with replacing(html) as file:
            file.buffer.write(inspect_page(title, compiled, measured=measured).encode())
        typer.echo(f"{html}: {title}, {compiled.certificate.state}")


def _shape(engine: Engine, which: StepKind) -> Shape:
    if which is StepKind.SCORE:
        return Shape("score", engine.prefill_rows, engine.chunk, 0)
    if which is StepKind.PROMPT:
        return Shape("generate", engine.prefill_rows, engine.chunk)
    return Shape("generate", engine.lanes, 1)


def _filled(engine: Engine, shape: Shape) -> tuple[Any, ...]:
    """Return arguments of a step whose lanes continue rows of their own; a chunk has one token less than it could."""
    params, rows, _, _, _, _, *rest = engine.example_arguments(shape)
    rng = np.random.default_rng(0)

    def filled(row: jax.ShapeDtypeStruct) -> jax.Array:
        floating = jnp.issubdtype(row.dtype, jnp.floating)
        return jnp.asarray(rng.normal(size=row.shape) if floating else np.zeros(row.shape), row.dtype)

    feed = Feed((1,) * max(1, shape.tokens - 1), 1)
    return params, jax.tree.map(filled, rows), *Batch.of([feed] * shape.lanes, shape.tokens), *rest
