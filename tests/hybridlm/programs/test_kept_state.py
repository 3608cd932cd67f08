"""Only accepted tokens change the state that a verifying step keeps: measured for every family, and seen to fail."""

import dataclasses
import re
from pathlib import Path

import pytest
from engine_mutants.catalogue import COMMITTED
from text_checkpoint import GOLDEN, SETTINGS

import hybridlm
from hybridlm.checkpoint.model import open_model
from hybridlm.devices.placement import ONE_DEVICE
from hybridlm.engine.abstract import abstract_engine
from hybridlm.programs import kept_state
from hybridlm.programs.kept_state import KeptState
from hybridlm.programs.shapes import Shape
from hybridlm.steps.structure import flatten
from ir_passes import AuditError, CertificationWarning
from ir_passes.contract.statements import MeasuredClaim, MeasuredFault, NotCovered
from models.sharding.devices import Devices

VERIFY = Shape("verify", 1, 4)
REJECTED, OTHER = MeasuredFault.REJECTED_TOKENS, MeasuredFault.NOT_THE_ACCEPTED
FAULTS = {
    "state-of-all-drafts": {("GatedDeltaNet.conv", REJECTED), ("GatedDeltaNet.recurrent", REJECTED)},
    "one-token-too-many": {(f"GatedDeltaNet.{array}", kind) for array in ("conv", "recurrent") for kind in (REJECTED, OTHER)},
    "one-token-too-few": {("GatedDeltaNet.conv", OTHER), ("GatedDeltaNet.recurrent", OTHER)},
    "window-of-all-drafts": {("GatedDeltaNet.conv", REJECTED), ("GatedDeltaNet.conv", OTHER)},
    "recurrence-of-all-drafts": {("GatedDeltaNet.recurrent", REJECTED), ("GatedDeltaNet.recurrent", OTHER)},
    "state-stays": {("GatedDeltaNet.conv", OTHER), ("GatedDeltaNet.recurrent", OTHER)},
    "draft-seen-early": {("outputs", REJECTED)},
    "other-outputs-while-verifying": {("outputs", OTHER)},
}  # fmt: skip
"""Mutant -> the arrays that must be found wrong, and how."""


def measured(directory: Path, devices: Devices = ONE_DEVICE.devices, tokens: int = 4) -> set[tuple[str, MeasuredFault]]:
    _, family, config = open_model(directory)
    structure, _ = flatten(family.abstract(config.shard(devices._replace(model=1, expert=1))))
    return {(one.where, MeasuredFault(one.kind)) for one in KeptState(config, devices, structure).findings(tokens)}


@pytest.mark.parametrize("id", COMMITTED)
def test_mutant_is_found(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    COMMITTED[id].fault(monkeypatch)
    assert measured(GOLDEN) == FAULTS[id]


def test_every_mutant_has_its_faults() -> None:
    assert FAULTS.keys() == COMMITTED.keys()


@pytest.mark.long
@pytest.mark.parametrize("kernels", ["auto", "off"])
@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.parent.iterdir()))
def test_nothing_is_wrong_with_a_family(name: str, kernels: str) -> None:
    """Also with more counts than one call has, and for the shard of a mesh, whose layers run whole."""
    assert measured(GOLDEN.parent / name, ONE_DEVICE.devices._replace(kernels=kernels)) == set()
    assert measured(GOLDEN.parent / name, Devices(model=2, kernels=kernels), 12) == set()


def test_layers_of_a_model_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models of one structure share the measurement; a patched layer is measured anew."""
    assert measured(GOLDEN) == set()
    monkeypatch.setattr(kept_state, "RANDOM_BLOCK", None)  # what was measured needs no random numbers
    KeptState._shared = dict(KeptState._shared)
    with pytest.raises(TypeError):
        measured(GOLDEN)
