"""Only accepted tokens change the kept state: measured for every family, and seen to fail."""

from pathlib import Path
from typing import Any

import pytest
from engine_mutants.catalogue import COMMITTED
from planned_engines import planned_engine
from published import QWEN4_EXP
from random_checkpoint import write_random_checkpoint
from text_checkpoint import GOLDEN

from hybridlm.compiler.statements import MeasuredClaim, MeasuredFault
from hybridlm.programs.kept_state import _small_model, kept_state_findings
from ir_passes import NotCovered
from models import Devices, family_of

VERIFY: dict[str, Any] = {"step": "verify", "lanes": 2, "tokens": 4, "rows": 2}
REJECTED, OTHER = MeasuredFault.REJECTED_TOKENS, MeasuredFault.NOT_THE_ACCEPTED
FAULTS = {
    "state-of-all-drafts": {("GatedDeltaNet.conv", REJECTED), ("GatedDeltaNet.recurrent", REJECTED)},
    "one-token-too-many": {(f"GatedDeltaNet.{x}", kind) for x in ("conv", "recurrent") for kind in (REJECTED, OTHER)},
    "one-token-too-few": {("GatedDeltaNet.conv", OTHER), ("GatedDeltaNet.recurrent", OTHER)},
    "window-of-all-drafts": {("GatedDeltaNet.conv", REJECTED), ("GatedDeltaNet.conv", OTHER)},
    "recurrence-of-all-drafts": {("GatedDeltaNet.recurrent", REJECTED), ("GatedDeltaNet.recurrent", OTHER)},
    "state-stays": {("GatedDeltaNet.conv", OTHER), ("GatedDeltaNet.recurrent", OTHER)},
    "draft-seen-early": {("outputs", REJECTED)},
    "other-outputs-while-verifying": {("outputs", OTHER)},
}  # fmt: skip
"""Mutant -> the arrays that must be found wrong, and how."""


def measured(config: str | Path, model: int = 1, tokens: int = 4, **options: Any) -> set[tuple[str, MeasuredFault]]:
    """Findings of a step of a configuration, on as many devices of the axis `model`."""
    engine = planned_engine(config, lanes=2, context=256, dtype="float32", chunk=8, **options)
    devices, whole = engine.placement.devices._replace(model=model), engine.row_arrays.model.config
    findings = kept_state_findings(whole, devices, engine.programs.structure, tokens)
    return {(finding.where, MeasuredFault(finding.kind)) for finding in findings}


@pytest.mark.parametrize("id", COMMITTED)
def test_mutant_is_found(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    COMMITTED[id].fault(monkeypatch)
    assert measured(GOLDEN.name) == FAULTS[id]


def test_every_mutant_has_its_faults() -> None:
    assert FAULTS.keys() == COMMITTED.keys()


@pytest.mark.long
@pytest.mark.parametrize("kernels", ["auto", "off"])
@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.parent.iterdir()))
def test_nothing_is_wrong_with_a_family(name: str, kernels: str) -> None:
    """Several calls' counts, and a shard of a mesh with whole layers."""
    assert measured(name, kernels=kernels) == set()
    assert measured(name, model=2, tokens=12, kernels=kernels) == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["next_base", "dense_base"])
def test_the_last_pair_of_a_head_is_written_by_the_next_step(name: str, tmp_path: Path) -> None:
    directory = write_random_checkpoint(name, tmp_path, head=True)
    assert measured(directory / "config.json", tokens=3, speculate="mtp", draft_tokens=2) == set()


def test_steps_that_are_not_run_are_not_claimed() -> None:
    """From config.json alone nothing can be run: `verify --abstract` and targets."""
    engine = planned_engine(GOLDEN.name, lanes=2, context=256, dtype="float32", chunk=8, kernels="off")
    planned = engine.planned(engine.shape(**VERIFY))
    assert NotCovered.ACCEPTED_TOKENS_ONLY in {certificate.id for certificate in planned.not_covered}
    assert MeasuredClaim.ACCEPTED_TOKENS_ONLY not in {certificate.id for certificate in planned.proved}


def test_measurements_of_verification_have_small_tables() -> None:
    """A table of the published size has 205 GB in float32."""
    small = _small_model(family_of(QWEN4_EXP).read_config(QWEN4_EXP), Devices())
    rows = [
        branch.inner.config.rows for layer in small.layers for branch in layer.branches if branch.inner.reads_tokens
    ]
    assert rows == [64 * 16] and len(small.layers) == 3
