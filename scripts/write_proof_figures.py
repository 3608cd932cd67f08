"""Prove programs, and write the table of "How the proof works".

    python scripts/write_proof_figures.py [--part 0] [--programs 12]

Also write docs/tables/proof-tables.md: the trusted base and the verdicts of public functions. Ten minutes on two
cores. The exit status is 1 if a program that leaks is proved.
"""

import argparse
import os
import re
import sys
import tomllib
from collections import Counter
from typing import Any

from table_pages import REFERENCE, ROOT, import_references, replace_lines

PAGE, TABLES = ROOT / "docs/isolation/how-the-proof-works.md", ROOT / "docs/tables/proof-tables.md"


def trusted_base() -> list[str]:
    """Return the table of trusted files, with lines and consequences of a bug."""
    entries = tomllib.loads((REFERENCE / "proofs/trusted_base.toml").read_text())
    rows, total = [], 0
    for name, consequence in entries.items():
        lines = [line for line in (ROOT / "ir_passes" / name).read_text().splitlines() if line.strip()]
        total += len(lines)
        rows.append(f"| `{name}` | {len(lines)} | {consequence} |")
    head = ["| file of ir_passes | lines | a bug may |", "|---|---:|---|"]
    return [f"{len(rows)} files, {total:,} lines without blank lines.", "", *head, *rows]


def proved(step: Any, args: tuple, contract: Any) -> bool:
    from hybridlm.compiler import IsolationError, prove_isolation

    try:
        prove_isolation(step, args, contract)
    except IsolationError:
        return False
    return True


def line(name: str, counts: Counter[str]) -> str:
    total = sum(counts.values())
    right = counts["clean, proved"] + counts["leaking, refused"]
    cells = (total, right, counts["leaking, refused"], counts["clean, refused"], counts["leaking, proved"])
    return f"| {name} | " + " | ".join(f"{cell:,}" for cell in cells) + " |"


DEFAULTS = r"(axis=0|role=None|dims=None|page_size=1|role='both'|null=True|packed=False|local=None)(, )?"
"""Fields of entries that a short contract leaves out."""


def entries_of(contract: Any) -> str:
    """Return a contract's entries in short."""
    import jax

    sides = (jax.tree.leaves(side, is_leaf=is_entry) for side in (contract.inputs, contract.outputs))
    text = " -> ".join(", ".join(map(str, side)) for side in sides)
    text += "".join(f"; {name}: {declared}" for name, declared in contract.opaque.items())
    return re.sub(r",? *\)", ")", re.sub(DEFAULTS, "", text))


def is_entry(value: Any) -> bool:
    """Return whether a value is a contract's entry."""
    return not isinstance(value, tuple | list | dict)


def public_functions() -> list[str]:
    """Return the table of public functions, grouped by contract and verdict."""
    import jax
    from engine_steps import NOT_PROVED, STEPS
    from test_shipped_kernels import (  # pyright: ignore[reportMissingImports]  # of tests/ir_passes/kernels
        DECLARED,
        LEAKS,
        USES,
    )

    names: dict[tuple[str, str, str], list[str]] = {}
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        for name, use in USES.items():
            step, args, contract = use()
            is_proved = proved(step, args, contract)
            reason = (
                f"refused, leaks: {LEAKS[name]}" if name in LEAKS else f"needs a declaration: {DECLARED.get(name, '')}"
            )
            verdict = "proved" if is_proved else reason.replace("\\", "")
            key = ("`jax.experimental.pallas.ops`", entries_of(contract), verdict)
            names.setdefault(key, []).append(f"`{name}`")
        for step in STEPS:
            is_proved = proved(step.run, step.args, step.contract)
            source = "JAX" if "." in step.name else "packed engines"
            alarm = NOT_PROVED.get(step.name)
            reason = "" if alarm is None else f"{alarm.reason}; `{alarm.respelling}` is proved"
            refused = "refused, leaks" if step.leaks else f"refused, clean: {reason}"
            key = (source, entries_of(step.contract), "proved" if is_proved else refused)
            names.setdefault(key, []).append(f"`{step.name}`")
    rows = [f"| {' '.join(group)} | {' | '.join(key)} |" for key, group in names.items()]
    return ["| functions | source | contract | verdict |", "|---|---|---|---|", *rows]


def figures(part: int, programs: int) -> tuple[list[str], bool]:
    """Return the table, and whether a leak was proved."""
    from engine_steps import STEPS
    from mutants.catalogue import MUTANTS
    from mutants.mutant import Tier
    from zoo.catalogue import PROGRAMS

    right = Counter[str](
        "clean, proved" if proved(program.step, program.args(), program.contract) else "clean, refused"
        for program in PROGRAMS.values()
    )
    wrong = Counter[str](
        "leaking, proved" if proved(m.program.step, m.program.args(), m.program.contract) else "leaking, refused"
        for m in MUTANTS.values()
        if m.tier is Tier.PROOF and m.program is not None
    )
    verdicts = [("leaking" if step.leaks else "clean", proved(step.run, step.args, step.contract)) for step in STEPS]
    outside = Counter[str](f"{truth}, {'proved' if is_proved else 'refused'}" for truth, is_proved in verdicts)
    changed = Counter[str]()
    from test_random_mutants import RUN, tally  # pyright: ignore[reportMissingImports]  # of tests/ir_passes/proof

    for name in RUN[part % len(RUN) :: max(1, len(RUN) // max(programs, 1))][:programs]:
        changed += tally(name, part)
    verdict_names = {"clean, proved", "clean, refused", "leaking, refused", "leaking, proved"}
    changed = Counter({key: count for key, count in changed.items() if key in verdict_names})
    head = [
        "| programs | number | right | of these leak, refused | false alarms | leak, proved |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    rows = [("right steps (zoo)", right), ("wrong steps (mutants)", wrong), ("one random change", changed)]
    rows += [("outside code", outside)]
    return head + [line(*row) for row in rows], any(counts["leaking, proved"] for _, counts in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", type=int, default=0, help="which thirtieth of the changes of a program")
    parser.add_argument("--programs", type=int, default=12, help="programs to change; 0 for none")
    parser.add_argument("--base-only", action="store_true", help="write the trusted base alone")
    parser.add_argument("--functions-only", action="store_true", help="write the base and the public functions")
    options = parser.parse_args()
    replace_lines(TABLES, "trusted base", trusted_base())
    if options.base_only:
        return 0
    replace_lines(TABLES, "public functions", public_functions())
    if options.functions_only:
        return 0
    lines, leaked = figures(options.part, options.programs)
    replace_lines(PAGE, "figures", lines)
    return int(leaked)


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    import_references()
    sys.path[:0] = [str(ROOT / "tests/ir_passes" / folder) for folder in ("proof", "kernels")]
    sys.exit(main())
