"""Kill -9 a scoring run at every change of a file, and run it again.

python kill_scoring.py FOLDER prints how many moments there are; exit status 1 if an output was wrong.
"""

import os
import pathlib
import shutil
import signal
import sys
from collections.abc import Callable
from typing import Any

from toy_scorer import encode, run_toy, toy, write_lines

from hybridlm.files import parts
from hybridlm.score_files.task import RowTask

LINES = [{"id": i, "text": "ab"[i % 2] * 70 + (str(i) if i % 5 else "too long for it")} for i in range(5)]
SCORER = toy(encode=lambda item, where: encode(item[70:], where))
"""A text has the tokens of its last characters, and rows of one beginning are scored together."""


def kill_at(moment: int) -> list[int]:
    """Kill this process at this moment; return the growing number of moments."""
    passed = [0]

    def reached() -> None:
        if passed[0] == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        passed[0] += 1

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **keywords: Any) -> Any:
            reached()
            result = function(*arguments, **keywords)
            reached()
            return result

        return watched

    write = parts._write

    def torn_write(path: pathlib.Path, content: bytes, mode: str = "wb") -> None:
        if passed[0] == moment:
            with path.open(mode) as file:
                file.write(content[: len(content) // 2])
        reached()
        write(path, content, mode)
        reached()

    parts._write = torn_write
    # A killed process leaves its writes to the system, so that nothing has to reach the disk here.
    os.fsync = around(lambda descriptor: None)
    os.replace = around(os.replace)
    for name in ("mkdir", "unlink", "rmdir"):
        setattr(pathlib.Path, name, around(getattr(pathlib.Path, name)))
    return passed


def run(task: RowTask, output: pathlib.Path, moment: int) -> tuple[int, int]:
    """Run a task in a process: signal or status, and passed moments (at most 255)."""
    child = os.fork()
    if child == 0:
        passed = kill_at(moment)
        run_toy(task, output.with_name("in.jsonl"), output, window=2, progress=False)
        os._exit(min(passed[0], 255))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return (status, 0) if status < 0 else (0, status)


def kill_everywhere(task: RowTask, folder: pathlib.Path, lines: list[Any]) -> bytes:
    """Kill a run at every moment; print their number, return the undisturbed output."""
    write_lines(folder / "in.jsonl", lines)
    undisturbed = folder / "undisturbed.jsonl"
    _, moments = run(task, undisturbed, -1)
    assert 20 < moments < 255, moments
    expected = undisturbed.read_bytes()
    for moment in range(moments):
        output = folder / "out.jsonl"
        output.write_bytes(b"older")
        assert run(task, output, moment)[0] == -signal.SIGKILL, moment
        assert output.read_bytes() in (b"older", expected), f"half an output after a kill at moment {moment}"
        # Once more, a moment later in the remaining work: a run that continues can be killed as well.
        run(task, output, moment // 2)
        signalled, _ = run(task, output, -1)
        rest = sorted(path.name for path in folder.iterdir() if path.name not in ("in.jsonl", undisturbed.name))
        if signalled or output.read_bytes() != expected or rest != [output.name]:
            sys.exit(f"killed at moment {moment}: the output differs, or {rest} are left")
        shutil.rmtree(folder / "out.jsonl.parts", ignore_errors=True)
    print(moments)
    return expected


if __name__ == "__main__":
    kill_everywhere(SCORER, pathlib.Path(sys.argv[1]), LINES)
