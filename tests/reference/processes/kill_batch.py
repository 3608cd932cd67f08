"""Kill -9 a batch run at every change of a file, and run it again.

python kill_batch.py FOLDER prints how many moments there are; exit status 1 if an output was wrong.
"""

import pathlib
import sys

from kill_scoring import kill_everywhere
from toy_scorer import NO_MODEL

# The last one has a custom_id that an earlier part has answered; lines of one prompt are answered together.
NAMES = ["a", "b", "c", "d", "a"]
LINES = [{"custom_id": name, "body": {"prompt": "ab"[i % 2] * 70}} for i, name in enumerate(NAMES)]

if __name__ == "__main__":
    assert b"is used twice, first in line 1" in kill_everywhere(NO_MODEL, pathlib.Path(sys.argv[1]), LINES)
