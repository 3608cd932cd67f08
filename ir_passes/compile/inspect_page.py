"""A self-contained page about a compiled step: its certificate, its pools, its copies, its kernels."""

from collections.abc import Iterable
from html import escape

from ir_passes.compile.certificate import Certificate
from ir_passes.compile.compiled_step import CompiledStep
from ir_passes.measure.dependence import Dependence
from ir_passes.report.html import table

MAX_KERNELS = 40
"""Operations on the page: those that move most."""
OWN_COLOUR = "e6f4ea"
"""Background of the cells that relate a lane to itself."""
STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1180px;padding:0 1em;color:#202124;background:#fff}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}table{border-collapse:collapse;margin:.6em 0}
td,th{border:1px solid #dadce0;padding:.2em .6em;text-align:left;vertical-align:top}
code,td.number{font-family:ui-monospace,monospace}td.number{text-align:right}
.yes{color:#137333;font-weight:600}.no{color:#c5221f;font-weight:600}
.matrix td{width:2.4em;text-align:center;padding:.15em}.matrix small{display:block}
.own{background:#OWN}.apart{color:#9aa0a6}.open{background:#fce8e6}
""".replace("OWN", OWN_COLOUR)


def inspect_page(title: str, step: CompiledStep, measured: Dependence | None = None) -> str:
    """Return the page as HTML that loads nothing from outside.

    Args:
        title: its heading.
        step: the step.
        measured: the dependence measured by changing one lane after the other, shown beside the proof's.
    """
    certificate = step.certificate
    plan, seconds = step.plan, certificate.seconds
    state = f'<span class="{"yes" if certificate.holds else "no"}">{escape(certificate.state)}</span>'
    sections = [
        f"<h1>{escape(title)}: {state}</h1>",
        f"<p>{certificate.lanes} lanes, {certificate.equations} equations; jax {escape(certificate.versions.jax)} on "
        f"{escape(certificate.versions.platform)} ({escape(certificate.versions.device)}). "
        f"Proof {seconds.prove:.3f} s, rewrites {seconds.rewrite:.3f} s, audit {seconds.audit:.3f} s: "
        f"{seconds.checking:.0%} of XLA's {seconds.compile:.3f} s.</p>",
        *_statements(certificate),
        "<h2>Which lane may reach which</h2>",
        _matrix(certificate, measured),
        "<h2>Pools</h2>",
        table(
            ("pool", "written in place as", "bytes", "faults", "copies of its type"),
            ((one.path, one.successor or "only read", one.bytes, one.faults, one.copies) for one in certificate.pools),
        ),
        *_kernels(step),
        "<h2>Scratch</h2>",
        f"<p>{plan.lower_bound:,} bytes are live at once before fusion. XLA allocates {certificate.memory.temp:,} for "
        "the fused program.</p>",
        "<h2>Certificate</h2>",
        f"<details><summary>as JSON</summary><pre>{escape(certificate.to_json())}</pre></details>",
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(sections) + "\n</body></html>\n"


def _statements(certificate: Certificate) -> Iterable[str]:
    """Yield what the certificate says, faults first."""
    for heading, lines in sorted(certificate.sections(), key=lambda section: section[0] != "faults"):
        if lines:
            items = "".join(f"<li>{escape(str(line))}</li>" for line in lines)
            yield f"<h2>{escape(heading.capitalize())}</h2><ul>{items}</ul>"


def _matrix(certificate: Certificate, measured: Dependence | None) -> str:
    """Return a table: its rows are the results and pool rows of a lane, its columns the lanes they may depend on."""
    lanes, proved = range(certificate.lanes), bool(certificate.proved)

    def cell(i: int, j: int) -> str:
        said = "own" if i == j else "apart" if proved else "open"
        if measured is None:
            return f'<td class="{said}">{said}</td>'
        seen = measured.changed[i][j]
        colour = "open" if seen and i != j else said
        return f'<td class="{colour}">{said}<small>{"changed" if seen else "same"}</small></td>'

    head = "".join(f"<th>{lane}</th>" for lane in lanes)
    rows = "".join(
        f"<tr><th>lane {i}</th>" + "".join(cell(i, j) for j in lanes) + '<td class="own">yes</td></tr>' for i in lanes
    )
    said = "apart: proved not to depend on it" if proved else "open: not proved"
    if measured is not None:
        said += "; below it whether a bit of it changed when all inputs and rows of the other were changed, in one run"
    return (
        f"<p>A row is what comes out for a lane, a column the lane whose inputs and pool rows go in; {said}.</p>"
        f'<table class="matrix"><tr><th></th>{head}<th>shared</th></tr>{rows}</table>'
    )


def _kernels(step: CompiledStep) -> Iterable[str]:
    """Yield the operations that move most, of a step that was compiled for another machine than this."""
    if step.target is None:
        return
    found = step.kernels
    yield "<h2>Kernels</h2>"
    yield (
        f"<p>{found.count:,} runs move {found.moved:,} bytes and compute {found.flops:,} operations of products; one "
        f"turn of each loop whose turns the data decide {found.moved_in_a_turn:,} bytes and "
        f"{found.flops_in_a_turn:,} operations. The {MAX_KERNELS} largest, bytes of one run:</p>"
    )
    rows = (
        (
            one.name, one.kind, one.source, f"{one.times:,}{' a turn' if one.by_data else ''}", one.read, one.written,
            one.flops, ", ".join(one.pools),
        )
        for one in found.largest(MAX_KERNELS)
    )  # fmt: skip
    yield table(("kernel", "kind", "made for", "runs", "reads", "writes", "operations", "pools"), rows)
