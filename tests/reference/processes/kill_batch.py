"""Kill -9 a batch run at every change of a file, and run it again.

python kill_batch.py FOLDER prints how many moments there are; exit status 1 if an output was wrong.
"""

import json
import os
import pathlib
import shutil
import signal
import sys

from kill_scoring import kill_at
from toy_scorer import NO_MODEL, run_toy

# The last one has a custom_id that an earlier part has answered.
NAMES = ["a", "b", "c", "d", "a"]


def run(output: pathlib.Path, moment: int) -> tuple[int, int]:
    """Answer in a process: signal or status, and passed moments (at most 255)."""
    child = os.fork()
    if child == 0:
        passed = kill_at(moment)
        run_toy(NO_MODEL, output.with_name("in.jsonl"), output, window=2, progress=False)
        os._exit(min(passed[0], 255))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return (status, 0) if status < 0 else (0, status)


def main(folder: pathlib.Path) -> None:
    # Lines of one prompt are answered together.
    lines = [{"custom_id": name, "body": {"prompt": "ab"[i % 2] * 70}} for i, name in enumerate(NAMES)]
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    undisturbed = folder / "undisturbed.jsonl"
    _, moments = run(undisturbed, -1)
    assert 20 < moments < 255, moments
    expected = undisturbed.read_bytes()
    assert b"is used twice, first in line 1" in expected
    for moment in range(moments):
        output = folder / "out.jsonl"
        output.write_bytes(b"older")
        assert run(output, moment)[0] == -signal.SIGKILL, moment
        assert output.read_bytes() in (b"older", expected), f"half an output after a kill at moment {moment}"
        run(output, moment // 2)
        signalled, _ = run(output, -1)
        rest = sorted(path.name for path in folder.iterdir() if path.name not in ("in.jsonl", undisturbed.name))
        if signalled or output.read_bytes() != expected or rest != [output.name]:
            sys.exit(f"killed at moment {moment}: the output differs, or {rest} are left")
        shutil.rmtree(folder / "out.jsonl.parts", ignore_errors=True)
    print(moments)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
