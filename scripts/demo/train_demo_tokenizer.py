"""Train the byte-level BPE tokenizer of the embedded model on generated stories.

    python scripts/demo/train_demo_tokenizer.py --output hybridlm/demo/model

Deterministic. `scripts/demo/train_demo.py` expects its files in the same directory.
"""

import argparse
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from hybridlm import demo

END = "<|endoftext|>"
VOCABULARY = 768
STORIES = 20_000

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% if not loop.last %} {% endif %}{% endfor %}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="directory for tokenizer.json")
    output: Path = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    stories = (demo.story(seed) for seed in range(STORIES))
    tokenizer.train_from_iterator((story.prompt + story.reply for story in stories), trainer)
    tokenizer.save(str(output / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (output / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    print(f"{tokenizer.get_vocab_size()} tokens, {output / 'tokenizer.json'}")


if __name__ == "__main__":
    main()
