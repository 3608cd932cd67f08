"""Commands in this process."""

from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

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
