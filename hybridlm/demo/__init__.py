"""The package's small model, and the stories of its questions.

A hybrid checkpoint (Gated DeltaNet and attention, Hugging Face layout), trained by `scripts/demo/train_demo.py` to
answer one question about a story from this story alone: a leak shows up as a wrong name. Imports nothing of the
package. Begin with `stories`; `model` is the checkpoint.
"""

from pathlib import Path

from hybridlm.demo.stories import UNSEEN, Story, story

__all__ = ["UNSEEN", "Story", "path", "story"]


def path() -> Path:
    """Return the directory of the embedded checkpoint."""
    return Path(__file__).parent / "model"
