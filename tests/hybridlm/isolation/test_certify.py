"""`load(..., certify=...)`: the engine runs certified steps only, unless told otherwise."""

from pathlib import Path
from typing import Any

import pytest
from leaking_steps import plant_leak

import hybridlm
from ir_passes import CertificationWarning, IsolationError

PROMPTS = [[5, 9, 3], [7, 11, 2, 8]]
SETTINGS: dict[str, Any] = {"lanes": 2, "context": 32, "dtype": "float32", "chunk": 4}


@pytest.mark.slow
def test_certificates_of_the_steps_that_ran(text_path: Path) -> None:
    lm = hybridlm.load(text_path, **SETTINGS)
    assert lm.certificates == {}
    lm.generate(PROMPTS, max_tokens=2, ignore_eos=True)
    assert set(lm.certificates) == {"generate 2x4 of 2", "generate 2x1 of 2"}
    for certificate in lm.certificates.values():
        assert certificate.holds and certificate.certify == "error"
        assert not any(pool.faults for pool in certificate.pools)
        assert all(".conv" in pool.path for pool in certificate.pools if pool.copies)
    assert lm.certificates["generate 2x1 of 2"].lanes == 2
    assert all(pool.successor for pool in lm.certificates["generate 2x1 of 2"].pools)
    assert lm.stats["compiled"] == 2


def test_leaking_step_is_refused_at_first_use(text_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leak = plant_leak(monkeypatch, "generate_step")
    lm = hybridlm.load(text_path, **SETTINGS)
    with pytest.raises(IsolationError) as raised:
        lm.generate(PROMPTS, max_tokens=2)
    assert leak in str(raised.value)
    assert any("generate 2x4 of 2" in note and "certify='warn'" in note for note in raised.value.__notes__)
    assert not lm.certificates and lm.stats["steps"] == 0


def test_leaking_step_warns(text_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leak = plant_leak(monkeypatch, "generate_step")
    lm = hybridlm.load(text_path, certify="warn", **SETTINGS)
    with pytest.warns(CertificationWarning) as warned:
        lm.generate(PROMPTS, max_tokens=1)
    assert any(leak in str(finding.message) for finding in warned)
    (certificate,) = lm.certificates.values()
    assert certificate.faults and not certificate.holds


@pytest.mark.slow
def test_leaking_step_runs_unseen(text_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_leak(monkeypatch, "generate_step")
    lm = hybridlm.load(text_path, certify="off", **SETTINGS)
    lm.generate(PROMPTS, max_tokens=1)
    (certificate,) = lm.certificates.values()
    assert not (certificate.faults or certificate.proved or certificate.audited or certificate.holds)


@pytest.mark.slow
def test_certificates_are_stored_with_the_programs(text_path: Path, tmp_path: Path) -> None:
    for reused in (False, True):
        lm = hybridlm.load(text_path, compilation_cache=tmp_path, **SETTINGS)
        lm.score(PROMPTS)
        assert lm.certificates["score 2x4 of 2"].reused == reused
    assert len(list((tmp_path / "certificates").glob("*.json"))) == 1
