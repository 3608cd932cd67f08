"""The table of certificates.md: certified statements about each family's steps on tests/golden."""

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import jax

import hybridlm
from hybridlm.engine.warmup import all_shapes
from ir_passes import Certificate
from models import family_of

LANES, TOKENS = 4, 8
STEPS = (
    f"prompts, {LANES} x {TOKENS}", f"decoding, {LANES} x 1", f"verification, {LANES} x 5",
    f"scoring, {LANES} x {TOKENS}", "parts of a row kept and put back", "decoding, 1 x 1, bfloat16",
)  # fmt: skip
"""The parts of a row are its arrays of fixed size and, where there are any, those that grow: two steps for each."""
GOLDEN = Path(__file__).resolve().parents[2] / "golden"
NAMES = (
    "next_dense_layers", "dense_interval", "sparse_base", "indexed_base", "lfm2_base", "lfm2_moe_base", "kimi_base",
    "ling_base", "mamba_base", "falcon_mamba_base", "jamba_base", "mamba2_base", "nemotron_latent", "granite_experts",
    "bamba_base", "falcon_base", "olmo_base", "zamba2_base", "lfm3_base", "lara_base", "minimax_base",
    "gigachat_base", "alice_base",
)  # fmt: skip
"""A checkpoint of each family."""


@dataclass(frozen=True)
class Row:
    """One checkpoint.

    Attributes:
        family: its name in the registry.
        checkpoint: its folder in tests/golden.
        verdicts: one for each of `STEPS`.
    """

    family: str
    checkpoint: str
    verdicts: tuple[str, ...]


def certified(checkpoint: str) -> Row:
    """Compile every step of a checkpoint; raises IsolationError or AuditError if one is refused."""
    directory = GOLDEN / checkpoint
    family = family_of(json.loads((directory / "config.json").read_text())).name
    lm = hybridlm.load(directory, lanes=LANES, context=64, dtype="float32", chunk=TOKENS)
    shapes = all_shapes(lm.engine, only_full=True, drafts=True)
    assert len(shapes) == len(STEPS) - 2
    single = hybridlm.load(directory, lanes=1, context=64, dtype="bfloat16", chunk=TOKENS).engine
    verdicts = [verdict([lm.engine.program(shape).certificate]) for shape in shapes]
    verdicts.append(
        verdict(
            [lm.engine.program(shape).certificate for shape in lm.engine.moves.shapes(LANES, lm.engine.pages(LANES))]
        )
    )
    verdicts.append(verdict([single.program(single.shape("generate", 1, 1)).certificate]))
    return Row(family, checkpoint, tuple(verdicts))


def verdict(certificates: list[Certificate]) -> str:
    """Return a verdict such as "proved, audited; 2 copies (conv)", with pools of pool-sized copies."""
    checks = ["proved", "audited"]
    for certificate in certificates:
        assert certificate.holds and all(getattr(certificate, name) for name in checks), certificate.report()
    count = sum(len(certificate.copies) for certificate in certificates)
    if not count:
        return ", ".join(checks)
    kinds = sorted(
        {re.split(r"\W+", pool.path)[-1] for certificate in certificates for pool in certificate.pools if pool.copies}
    )
    return f"{', '.join(checks)}; {count} cop{'y' if count == 1 else 'ies'} ({', '.join(kinds)})"


def table(rows: list[Row]) -> str:
    """The text of certificates.md."""
    lines = [f"| {row.family} | {row.checkpoint} | {' | '.join(row.verdicts)} |\n" for row in rows]
    totals = Counter("copies" if ";" in cell else "none" for row in rows for cell in row.verdicts)
    return f"""# Certificates of every family

Every step that the engine runs, of a tiny checkpoint of every family: proved to keep its lanes apart, compiled by XLA
and audited. A copy of a pool is listed in {totals.total() - totals["none"]} of the {totals.total()} cells.
jax {jax.__version__} on {jax.default_backend()}, float32 but where a column says otherwise, {LANES} lanes,
chunks of {TOKENS} tokens, context 64. Of a row the prefix cache keeps the arrays of fixed size and spans of those that
grow: a step takes each out of a pool, and one puts it back.
Written by scripts/write_certificates.py; the steps of published models are in
[proof-tables.md](tables/proof-tables.md).

| family | checkpoint | {" | ".join(STEPS)} |
|{"---|" * (2 + len(STEPS))}
{"".join(lines)}
A copy may be of `conv` alone, the last inputs of a short convolution: two or three rows of its channels, which move up
by one with every token. The new rows are the old ones at other places, and XLA writes them where the old ones are only
if it knows that those have been read: the convolution takes both from one window that is computed once. In
Qwen3.5-35B-A3B a copy would be 98 kB a layer for each sequence, beside a recurrent matrix of 2 MB. A step that copies a
recurrent matrix, a key, value or latent cache is refused (`COPIED` in hybridlm/programs/programs.py).

Where a backend of XLA does not say where it places values, a step is proved and not audited, and its certificate says
why (`not_audited`): `load(certify="error")` runs it, and `hybridlm verify` shows "not audited". None of the cells above
is such a step; [devices.md](devices.md#gpus-and-tpus) says what is known of GPUs.
"""
