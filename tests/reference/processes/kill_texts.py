"""Run a method over a file and kill -9 after so many texts.

python kill_texts.py MODEL INPUT OUTPUT COUNT METHOD
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "checkpoints"))
from text_checkpoint import SETTINGS

import hybridlm
from hybridlm.files import finished

add, finished.KEPT_EVERY = finished.FinishedTexts.add, 0.0
counted = [0]


def killing(self: finished.FinishedTexts, *args: Any) -> None:
    """Count the finished texts."""
    if counted[0] == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
    counted[0] += 1
    add(self, *args)


finished.FinishedTexts.add = killing  # type: ignore[method-assign]  # the process ends
getattr(hybridlm.load(sys.argv[1], **SETTINGS), sys.argv[5])(sys.argv[2], sys.argv[3])
