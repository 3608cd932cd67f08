"""Recall of the embedded model on stories it has never seen.

    python scripts/demo/demo_recall.py

Every story is answered alone, then in batches of 8, then in batches of 8 with the states of neighbouring lanes swapped.
Batches must not change completions; swapped states must give wrong names.
"""

import argparse
from pathlib import Path

import hybridlm
from hybridlm import demo
from hybridlm.demo.faults import swapped_lanes


def completions(lm: hybridlm.LM, stories: list[demo.Story], size: int) -> list[str]:
    """Return greedy completions of all stories, in batches of `size`."""
    texts: list[str] = []
    for first in range(0, len(stories), size):
        batch = lm.generate([story.prompt for story in stories[first : first + size]], max_tokens=12)
        texts += [completion.text or "" for completion in batch]
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=demo.path(), help="checkpoint (default: the embedded one)")
    parser.add_argument("--stories", type=int, default=500, help="number of unseen stories (default: 500)")
    parser.add_argument("--first", type=int, default=demo.UNSEEN.start, help="seed of the first story")
    args = parser.parse_args()
    stories = [demo.story(args.first + i) for i in range(args.stories)]
    single, eight = hybridlm.load(str(args.model), lanes=1), hybridlm.load(str(args.model), lanes=8)

    def report(name: str, texts: list[str]) -> None:
        right = sum(story.answered_by(text) for story, text in zip(stories, texts, strict=True))
        print(f"{name:44s} {right:4d} of {len(stories)}  {right / len(stories):6.1%}", flush=True)

    single_texts = completions(single, stories, 1)
    report("alone", single_texts)
    batch_texts = completions(eight, stories, 8)
    report("batches of 8", batch_texts)
    different = sum(a != b for a, b in zip(single_texts, batch_texts, strict=True))
    print(f"{'completions that differ between the two':44s} {different:4d} of {len(stories)}")
    for name, recurrent_only in (("states of lanes swapped", False), ("recurrent states alone swapped", True)):
        with swapped_lanes(eight, recurrent_only):
            report(f"batches of 8, {name}", completions(eight, stories, 8))


if __name__ == "__main__":
    main()
