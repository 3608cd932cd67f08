"""A backend without buffer assignment: steps are proved, run, and not audited."""

import logging
import re
from pathlib import Path

import pytest
from command_line import run_command
from text_checkpoint import SETTINGS
from without_assignment import erase, hide_assignments

import hybridlm
from ir_passes import Certificate

PROMPTS = [[5, 9, 3], [7, 2, 60, 8], [4]]


def answers(lm: hybridlm.LM) -> list[tuple[int, ...]]:
    return [tuple(completion.token_ids) for completion in lm.generate(PROMPTS, max_tokens=4, ignore_eos=True)]


@pytest.mark.slow
def test_steps_without_a_buffer_assignment_run(
    text_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usual = hybridlm.load(text_path, compilation_cache=False, **SETTINGS)
    expected = answers(usual)
    hide_assignments(monkeypatch, erase)
    lm = hybridlm.load(text_path, certify="error", compilation_cache=False, **SETTINGS)
    with caplog.at_level(logging.WARNING, "hybridlm"):
        assert answers(lm) == expected
    assert set(lm.certificates) == set(usual.certificates) and len(lm.certificates) > 1
    for name, certificate in lm.certificates.items():
        assert certificate.not_audited is not None and "no buffer assignment" in certificate.not_audited
        assert certificate.audited == () and certificate.is_proof
        assert certificate.proved == usual.certificates[name].proved
        assert usual.certificates[name].not_audited is None
    assert len(re.findall("not audited", caplog.text)) == 1


@pytest.mark.slow
def test_verify_reports_steps_that_are_not_audited(
    text_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_assignments(monkeypatch, erase)
    options = (
        "--lanes", "2", "--context", "32", "--chunk", "4", "--dtype", "float32", "--full", "--out", str(tmp_path),
    )  # fmt: skip
    result = run_command("verify", "--model", text_path, *options)
    out = [Certificate.from_json(path.read_text()) for path in tmp_path.glob("*.json")]
    assert len(out) > 1 and all(c.not_audited and c.is_proof and not c.holds for c in out)
    assert len(re.findall(r"│ *not audited *│", result.output)) == len(out)
    assert f"all {len(out)} steps are proved, and {len(out)} of them NOT AUDITED" in result.output
    assert "\nnot audited:\n" in result.output and "no buffer assignment" in result.output
