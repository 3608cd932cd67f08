"""The small model of the package, and the stories of its questions.

The model is a real hybrid checkpoint (Gated DeltaNet and attention layers, Hugging Face layout). It was trained by
`scripts/demo/train_demo.py` to answer one question about a story, and the answer is in that story only: a sequence
that leaked into another one would show up as a wrong name. Imports nothing of the package. Begin with `stories`; the
files of `model` are the checkpoint.
"""

from pathlib import Path

from hybridlm.demo.stories import UNSEEN, Story, story

__all__ = ["UNSEEN", "Story", "path", "story"]


def path() -> Path:
    """Return the directory of the embedded checkpoint: config.json, model.safetensors and the tokenizer's files."""
    return Path(__file__).parent / "model"
