"""The embedded model and its stories: contents, and no leak between answers."""

import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hybridlm
from hybridlm import demo
from hybridlm.demo import stories
from hybridlm.demo.faults import swapped_lanes

SCRIPT = Path(__file__).parents[3] / "scripts" / "demo" / "train_demo.py"
COUNT = 40
FIRST_UNSEEN = (
    "The train was late again. Mia likes the rain. The red clock went to Rosa. The green scarf went "
    "to Paul. Ned sang an old song. Amir has the green tent. The wind was cold. Mia keeps the black "
    "tent, while the red cup went to Ned. The black cup belongs to Sam. Who has the green tent?"
)


@pytest.fixture(scope="module")
def unseen() -> list[demo.Story]:
    return [demo.story(demo.UNSEEN.start + i) for i in range(COUNT)]


@pytest.fixture(scope="module")
def eight() -> hybridlm.LM:
    return hybridlm.load(str(demo.path()), lanes=8)


def complete(lm: hybridlm.LM, storys: list[demo.Story], joint: int) -> list[str]:
    texts: list[str] = []
    for first in range(0, len(storys), joint):
        prompts = [story.prompt for story in storys[first : first + joint]]
        texts += [completion.text or "" for completion in lm.generate(prompts, max_tokens=12)]
    return texts


def recall(storys: list[demo.Story], texts: list[str]) -> float:
    return sum(story.answered_by(text) for story, text in zip(storys, texts, strict=True)) / len(storys)


@pytest.mark.slow
def test_a_story_depends_on_its_seed_alone():
    assert demo.story(7) == demo.story(7)
    assert demo.story(7) != demo.story(8)
    code = "from hybridlm.demo.stories import story; print(story(1_000_000_007).prompt)"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == demo.story(1_000_000_007).prompt


def test_a_story_is_the_same_everywhere():
    assert demo.story(demo.UNSEEN.start).prompt == FIRST_UNSEEN


def test_training_and_unseen_stories_are_disjoint():
    training = {demo.story(seed).text for seed in range(3000)}
    assert len(training) == 3000
    assert not training & {demo.story(seed).text for seed in demo.UNSEEN[:3000]}


def owners_in(text: str, thing: str) -> set[str]:
    """Names in the clauses that mention a thing, found without the generator's help."""
    clauses = re.split(r"\. |, but | while | and |\.$", text)
    return {word for clause in clauses if thing in clause for word in re.findall(r"\w+", clause)} & set(stories.NAMES)


@pytest.mark.parametrize("seed", [0, 1, 2, demo.UNSEEN.start, demo.UNSEEN.start + 1, demo.UNSEEN.stop - 1])
def test_the_question_is_decided_by_the_story_alone(seed: int):
    story = demo.story(seed)
    thing = re.fullmatch(r"Who has the (\w+ \w+)\?", story.question)
    assert thing is not None
    assert story.text.count(thing[1]) == 1
    assert owners_in(story.text, thing[1]) == {story.answer}
    assert len({name for _, name in story.holders}) == len({c for c, _ in story.holders}) == stories.HOLDERS >= 6
    colour, noun = thing[1].split()
    assert story.answered_by(story.reply)
    assert not story.answered_by(story.reply.replace(story.answer, stories.NAMES[0] + "x"))
    assert colour in stories.COLOURS and noun in stories.NOUNS


def test_every_thing_of_every_story_is_decided():
    for seed in demo.UNSEEN[:300]:
        story = demo.story(seed)
        assert {thing: {name} for thing, name in story.holders} == {
            thing: owners_in(story.text, thing) for thing, _ in story.holders
        }


def test_neither_colour_nor_noun_alone_decides_in_most_stories():
    def shared(story: demo.Story) -> bool:
        colour, noun = story.question.removesuffix("?").split()[-2:]
        things = [thing.split() for thing, _ in story.holders]
        return sum(colour == c for c, _ in things) > 1 or sum(noun == n for _, n in things) > 1

    assert sum(shared(demo.story(seed)) for seed in demo.UNSEEN[:300]) > 200


@pytest.mark.parametrize(("name", "value"), [("seed", -1), ("holders", 0), ("holders", 17)])
def test_a_story_that_cannot_be_told_is_refused(name: str, value: int):
    with pytest.raises(ValueError, match=rf"{name}.*{value}"):
        demo.story(**{"seed": 0, name: value})


def test_the_model_is_small_and_its_prompts_are_long_enough(eight: hybridlm.LM, unseen: list[demo.Story]):
    assert sum(file.stat().st_size for file in demo.path().glob("*.safetensors")) <= 8_000_000
    assert eight.tokenizer is not None
    assert min([len(eight.tokenizer.encode(story.prompt)) for story in unseen]) >= 60
    text = "any text, even naïve 世界 \U0001f600\n"
    assert eight.tokenizer.decode(eight.tokenizer.encode(text)) == text


@pytest.mark.slow
def test_recall_alone_and_in_batches(eight: hybridlm.LM, unseen: list[demo.Story]):
    completion = complete(eight, unseen, 8)
    assert recall(unseen, completion) >= 0.97
    some = unseen[: COUNT // 4]  # scripts/demo/demo_recall.py has 500
    assert complete(hybridlm.load(str(demo.path()), lanes=1), some, 1) == completion[: len(some)]


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [8, pytest.param(3, marks=pytest.mark.long)])
def test_a_queue_over_few_lanes_gives_the_same(eight: hybridlm.LM, unseen: list[demo.Story], lanes: int):
    lm = eight if lanes == 8 else hybridlm.load(str(demo.path()), lanes=lanes)
    assert complete(lm, unseen, COUNT) == complete(eight, unseen, 8)


@pytest.mark.slow
def test_swapped_states_give_wrong_names(eight: hybridlm.LM, unseen: list[demo.Story]):
    completion = complete(eight, unseen[:8], 8)
    with swapped_lanes(eight):
        assert recall(unseen, complete(eight, unseen, 8)) < 0.2
    assert complete(eight, unseen[:8], 8) == completion


@pytest.mark.slow
def test_it_chats(eight: hybridlm.LM, unseen: list[demo.Story]):
    answer = eight.chat([{"role": "user", "content": unseen[0].prompt}], max_tokens=12)
    assert answer.text == unseen[0].reply
    assert answer.finish_reason == "stop"


@pytest.mark.long
def test_recall_on_500_stories(eight: hybridlm.LM):
    lines = [demo.story(seed) for seed in demo.UNSEEN[:500]]
    assert recall(lines, complete(eight, lines, 8)) >= 0.97
    assert recall(lines, complete(hybridlm.load(str(demo.path()), lanes=1), lines, 1)) >= 0.97
    with swapped_lanes(eight):
        assert recall(lines, complete(eight, lines, 8)) < 0.2


OFFLINE = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        raise PermissionError(f"no network here: {event}{arguments}")

sys.addaudithook(refuse)
"""


@pytest.mark.long
def test_the_command_answers_without_network_within_two_minutes(tmp_path: Path):
    """A cold start: an empty cache, and XLA's options of users.

    It is the processor's time, which does not count other work on the machine: with its own core the command takes
    no longer than that.
    """
    (tmp_path / "sitecustomize.py").write_text(OFFLINE)
    saved = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS" and not key.startswith("JAX_")}
    path = os.pathsep.join([str(tmp_path), str(SCRIPT.parents[1])])
    environment = saved | {"PYTHONPATH": path, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        full = [sys.executable, *command]
        return subprocess.run(full, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=900)

    # the test would see a connection
    assert "no network here" in run("-c", "import socket; socket.create_connection(('127.0.0.1', 9))").stderr
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = run("-m", "hybridlm", "demo")
    final = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0, result.stderr
    assert len(re.findall(r"[78] of 8 right", result.stdout)) == 2 and "all 8 answers are equal" in result.stdout
    assert final.ru_utime + final.ru_stime - usage.ru_utime - usage.ru_stime < 120
    assert list((tmp_path / "cache" / "hybridlm").rglob("*-cache"))


@pytest.mark.long
def test_training_is_deterministic_and_its_files_load(tmp_path: Path):
    files = []
    for name in ("first", "second"):
        output = tmp_path / name
        output.mkdir()
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(demo.path() / file, output)
        settings = ["--output", str(output), "--steps", "3", "--rows", "2"]
        environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1])}
        subprocess.run([sys.executable, str(SCRIPT), *settings], check=True, timeout=900, env=environment)
        files.append((output / "model.safetensors").read_bytes())
    assert files[0] == files[1]
    assert len(hybridlm.load(str(tmp_path / "first"), lanes=1).generate(["Who?"], max_tokens=2)) == 1
