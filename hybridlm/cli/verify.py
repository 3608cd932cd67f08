"""`hybridlm verify`: prove and audit every step of a model."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from hybridlm.checkpoint.quantise import Recipe
from hybridlm.cli.options import MODEL, Full, Loading, console_for_table, loads, table_of
from hybridlm.cli.quantise import GroupSize, Head, Mixers, Scheme
from hybridlm.cli.verify_report import Cells, VerifyReport, verify_target
from hybridlm.devices.mesh import abstract_mesh
from hybridlm.engine.abstract import abstract_engine
from hybridlm.engine.config import STEP_OPTIONS, EngineConfig
from hybridlm.engine.engine import Engine
from hybridlm.engine.warmup import all_shapes
from hybridlm.programs.shapes import AnyShape, EditShape, Shape
from hybridlm.target_report.fit import fit_of
from ir_passes import AuditError, IsolationError
from ir_passes.targets import read_target


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model, its weights and its machine."""

    model: Annotated[str | None, MODEL] = None
    config: Annotated[
        Path | None, typer.Option(help="With --abstract or --target: a config.json; no weights are needed.")
    ] = None
    abstract: Annotated[
        bool,
        typer.Option(
            "--abstract",
            help="Prove and plan the steps of --config by abstract interpretation, without weights; none is compiled "
            "or audited. Only the steps of all lanes, with 8 prompts at a time. With --target: whether they fit it.",
        ),
    ] = False
    target: Annotated[
        str | None,
        typer.Option(
            help="Compile every step for this machine, which need not be there, and say whether the model fits, what "
            "each step moves and the least time that takes: nvidia-h100, nvidia-h100:4, tpu-v5e:8 "
            "(docs/accelerators.md). Only the steps of all lanes.",
            metavar="NAME",
        ),
    ] = None
    scheme: Annotated[
        Scheme | None,
        typer.Option(help="With --abstract or --target: weights as `hybridlm quantise --scheme` would write them."),
    ] = None
    group_size: GroupSize = None
    mixers: Mixers = False
    head: Head = False

    def recipe(self) -> Recipe | None:
        """Return the recipe of --scheme, or None."""
        if self.scheme is not None:
            return Recipe.of(self.scheme, group_size=self.group_size, mixers=self.mixers, head=self.head)
        if self.group_size is not None or self.mixers or self.head:
            raise ValueError("--group-size, --mixers, --head: need --scheme")
        return None


@loads(*STEP_OPTIONS, lanes=None)
def verify(
    loading: Loading,
    subject: Subject,
    full: Full = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the equations around each fault with their abstract values.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --target: print the report as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write each certificate as JSON into this directory.")] = None,
) -> None:
    """Prove that no lane of any step reaches another, and audit XLA's program.

    If a backend of XLA does not report its buffer assignment, a step is proved and "not audited"; this is no failure.
    There is a row per step: prefill, decoding, verification of drafts, and scoring. The exit status is 1 if a step
    fails. "copies" counts copies of pool size; "checks" is the time of proof, rewrites and audit as a fraction of XLA's
    compile time in seconds. "scratch" is the maximum of live bytes before XLA fuses, "state of a row" the bytes of one
    sequence. On a mesh all numbers are per device, and "exchanges" counts the collectives of a step; with --abstract
    the devices need not exist. With --target the exit status is 1 also if the model does not fit. There are 8 lanes by
    default, with --abstract or --target 64 and chunks of 256 tokens. --group-size, --mixers and --head need --scheme.
    """
    recipe, target = subject.recipe(), subject.target
    if target is not None and not subject.abstract:
        if explain:
            raise ValueError("--explain: not with --target")
        verify_target(
            target, loading, model=subject.model, config=subject.config, recipe=recipe, out=out, as_json=as_json
        )
        return
    if as_json:
        raise ValueError("--json: needs --target, not with --abstract")
    engine, report = _engine(loading, subject, out)
    console = console_for_table()
    table, faults = table_of("step", "lanes", "tokens", *report.headings, title=report.title), list[str]()
    for shape in all_shapes(engine, full or subject.abstract, drafts=True):
        with console.status(f"{shape}"):
            cells, fault = _checked(report, shape, explain)
        table.add_row(*_place(shape), *cells)
        faults += fault
    console.print(table)
    _print_statements(console, report.found)
    for layer in dict.fromkeys(type(each).__name__ for each in engine.row_arrays.model.without_commit()):
        console.print(f"\nno step verifies drafts: {layer} does not define commit (docs/adding-a-family.md)")
    _print_exchanges(console, report)
    if faults:
        for fault in faults:
            typer.echo(f"\n{fault}", err=True)
        typer.echo(f"\nerror: {len(faults)} of {table.row_count} steps failed", err=True)
        raise typer.Exit(1)
    console.print(f"all {table.row_count} steps are {report.summary}")
    if report.planned and not _printed_fit(console, engine, report):
        raise typer.Exit(1)


def _engine(loading: Loading, subject: Subject, out: Path | None) -> tuple[Engine, VerifyReport]:
    """Return a model's engine and report; raises ValueError for contradictory options."""
    model, config, recipe = subject.model, subject.config, subject.recipe()
    if model is not None and config is not None:
        raise ValueError("--model and --config: expected one of them, got both")
    if not subject.abstract:
        if config is not None:
            raise ValueError(
                "--config: a config.json without its weights can only be verified with --abstract or --target"
            )
        if recipe is not None:
            raise ValueError("--scheme: --model has its own weights; expected --abstract or --target")
        if model is None:
            raise ValueError("expected --model, or --config with --abstract, got neither")
        lanes = loading.settings["lanes"]
        lm = loading.load(model, lanes=EngineConfig.lanes if lanes is None else lanes)
        return lm.engine, VerifyReport(lm.engine, out=out)
    if config is None:
        got = "--model" if model is not None else "neither"
        raise ValueError(f"--abstract: expected --config, the path of a config.json, got {got}")
    if out is not None:
        raise ValueError("--out: a certificate is of a compiled step, and --abstract compiles none")
    target = None if subject.target is None else read_target(subject.target)
    sizes = loading.mesh_sizes
    devices = None if sizes is None else abstract_mesh(**sizes)
    if target is not None and (devices is None) != (target.count == 1):
        raise ValueError(f"--mesh: expected one of the {target.count} devices of {target.name}")
    engine = abstract_engine(config, loading.config(devices), target, recipe)
    return engine, VerifyReport(engine, planned=True)


def _printed_fit(console: Console, engine: Engine, report: VerifyReport) -> bool:
    """Print and return whether a planned model fits; True without target."""
    target = engine.placement.target
    if target is None or target.memory is None:
        return True
    # A step also has results of its scratch's size: XLA reports them only after compilation.
    fit = fit_of(engine, target.memory, target.platform, max(step.plan.lower_bound for step in report.found), None)
    for line in (f"on each {target.device_kind}:", *fit.lines):
        console.print(line)
    return fit.fits


def _checked(report: VerifyReport, shape: AnyShape, explain: bool) -> tuple[Cells, list[str]]:
    no, yes = Text("NO", "bold red"), Text("yes", "green")
    try:
        return report.cells(shape), []
    except IsolationError as error:
        return ("", no), [error.explain() if explain else _described(error)]
    except AuditError as error:
        return ("", yes, no), [_described(error)]


def _place(shape: AnyShape) -> tuple[str, str, str]:
    if isinstance(shape, Shape):
        return shape.step, str(shape.lanes), str(shape.tokens)
    if isinstance(shape, EditShape):
        return "edit states", str(shape.lanes), ""
    return f"{'keep' if shape.kept else 'restore'} a {shape.part}", str(shape.pool), ""


def _print_statements(console: Console, rows: Iterable[Any]) -> None:
    every = list(rows)
    for heading in ("proved", "audited", "measured", "not_audited", "assumed", "not_covered"):
        groups = (getattr(statement, heading, None) or () for statement in every)
        lines = dict.fromkeys(str(line) for group in groups for line in ((group,) if isinstance(group, str) else group))
        if lines:
            console.print(f"\n{heading.replace('_', ' ')}:")
        for line in lines:
            console.print(f"  {line}")


def _print_exchanges(console: Console, report: VerifyReport) -> None:
    for name, lines in report.exchanged.items():
        console.print(f"\nexchanged by {name}:")
        for line in lines or ("nothing",):
            console.print(f"  {line}")


def _described(error: Exception) -> str:
    return "\n".join((str(error), *getattr(error, "__notes__", ())))
