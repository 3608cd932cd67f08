"""Commands in this process, and the model that they load."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import hybridlm
from hybridlm.checkpoint.classifier import Classifier
from hybridlm.cli import options
from hybridlm.cli.main import app


def run_command(*arguments: str | int | Path, code: int | None = 0, stdin: str | bytes | None = None) -> Result:
    """Run `hybridlm ARGUMENTS` and return its output, if it exits with this code; with None any code does.

    Raises:
        AssertionError: the command exited with another code.
        Exception: the command did not turn it into a message.
    """
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin, catch_exceptions=False)
    assert code is None or result.exit_code == code, (arguments, result.output)
    return result


def load_in_commands(patch: pytest.MonkeyPatch, lm: hybridlm.LM) -> None:
    """Make every command load this model, so that its steps are compiled once."""
    patch.setattr(options, "load", lambda *args, **settings: lm)


def give_classifier(patch: pytest.MonkeyPatch, lm: hybridlm.LM, weight: np.ndarray, *labels: str) -> None:
    """Give a model a head of texts with these labels; `weight` is float32 [labels, hidden]."""
    patch.setattr(lm.text_model, "classifier", Classifier(weight, labels))
