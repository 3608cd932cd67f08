"""A self-contained page about a compiled step: certificate, pools, copies, kernels."""

from collections.abc import Iterable
from html import escape

from ir_passes.compile.certificate import Certificate
from ir_passes.compile.compiled_step import CompiledStep
from ir_passes.compile.html import table
from ir_passes.measure.dependence import Dependence

MAX_KERNELS = 40
OWN_COLOUR = "e6f4ea"
"""Background of cells on the diagonal."""
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
    """Return self-contained HTML; `measured` dependence is shown under the proved one."""
    certificate = step.certificate
    plan, seconds = step.plan, certificate.seconds
    state = f'<span class="{"yes" if certificate.holds else "no"}">{escape(certificate.state)}</span>'
    sections = [
        f"<h1>{escape(title)}: {state}</h1>",
        f"<p>{certificate.lanes} lanes, {certificate.equations} equations; jax {escape(certificate.versions.jax)} on "
        f"{escape(certificate.versions.platform)} ({escape(certificate.versions.device)}). "
        f"Proof {seconds.prove:.3f} s, rewrites {seconds.rewrite:.3f} s, audit {seconds.audit:.3f} s: "
        f"{seconds.checking:.0%} of XLA's {seconds.compile:.3f} s.</p>",
        *(
            f"<h2>{escape(heading.capitalize())}</h2>"
            f"<ul>{''.join(f'<li>{escape(str(line))}</li>' for line in lines)}</ul>"
            for heading, lines in sorted(certificate.sections(), key=lambda section: section[0] != "faults")
            if lines
        ),
        "<h2>Which lane may reach which</h2>",
        _matrix(certificate, measured),
        "<h2>Pools</h2>",
        table(
            ("pool", "written in place as", "bytes", "faults", "copies of its type"),
            (
                (pool.path, pool.successor or "only read", pool.bytes, pool.faults, pool.copies)
                for pool in certificate.pools
            ),
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


def _matrix(certificate: Certificate, measured: Dependence | None) -> str:
    """Return a table of lanes; a cell is an influence of column on row."""
    lanes, proved = range(certificate.lanes), bool(certificate.proved)

    def cell(i: int, j: int) -> str:
        relation = "own" if i == j else "apart" if proved else "open"
        if measured is None:
            return f'<td class="{relation}">{relation}</td>'
        changed = measured.changed[i][j]
        colour = "open" if changed and i != j else relation
        return f'<td class="{colour}">{relation}<small>{"changed" if changed else "same"}</small></td>'

    head = "".join(f"<th>{lane}</th>" for lane in lanes)
    rows = "".join(
        f"<tr><th>lane {i}</th>" + "".join(cell(i, j) for j in lanes) + '<td class="own">yes</td></tr>' for i in lanes
    )
    legend = "apart: proved not to depend on it" if proved else "open: not proved"
    if measured is not None:
        legend += (
            "; below it whether a bit of it changed when all inputs and rows of the other were changed, in one run"
        )
    return (
        f"<p>A row is what comes out for a lane, a column the lane whose inputs and pool rows go in; {legend}.</p>"
        f'<table class="matrix"><tr><th></th>{head}<th>shared</th></tr>{rows}</table>'
    )


def _kernels(step: CompiledStep) -> Iterable[str]:
    if step.target is None:
        return
    kernels = step.kernels
    yield "<h2>Kernels</h2>"
    yield (
        f"<p>{kernels.count:,} runs move {kernels.moved:,} bytes and compute {kernels.flops:,} operations of products; "
        f"one turn of each loop whose turns the data decide {kernels.moved_in_a_turn:,} bytes and "
        f"{kernels.flops_in_a_turn:,} operations. The {MAX_KERNELS} largest, bytes of one run:</p>"
    )
    rows = (
        (
            kernel.name, kernel.kind, kernel.source, f"{kernel.times:,}{' a turn' if kernel.by_data else ''}",
            kernel.read, kernel.written, kernel.flops, ", ".join(kernel.pools),
        )
        for kernel in kernels.largest(MAX_KERNELS)
    )  # fmt: skip
    yield table(("kernel", "kind", "made for", "runs", "reads", "writes", "operations", "pools"), rows)
