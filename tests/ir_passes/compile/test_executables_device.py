"""The device of a step follows the executable and arguments, not the process."""

import jax
import pytest
from audited_steps import right_steps

from ir_passes.compile.compile_step import compile_step
from ir_passes.compile.versions import current_versions

STEP = right_steps()["gather, compute, scatter"]


def test_platform_matches_the_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert STEP.executable().platform == "cpu"


def test_default_device_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def devices() -> None:
        raise AssertionError("the arguments say where the step will run")

    monkeypatch.setattr(jax, "devices", devices)
    assert compile_step(STEP.fn, STEP.args, STEP.contract).certificate.versions.platform == "cpu"


def test_certificate_names_the_device_of_the_arguments() -> None:
    class Device:
        id, platform, device_kind = 3, "gpu", "H100"

    versions = current_versions(None, Device())
    assert (versions.platform, versions.device) == ("gpu", "H100")
