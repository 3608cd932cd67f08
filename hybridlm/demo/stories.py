"""Short stories in plain English; each answers its last question.

Names and things are random, colours and nouns repeat within a story. Stories depend on the seed alone: Python
guarantees the sequence of `random.Random.random` across versions.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")

UNSEEN = range(1_000_000_000, 2_000_000_000)
"""Seeds that training (`scripts/demo/train_demo.py`) never uses."""

HOLDERS = 6
"""People who have something, in a full story."""

NAMES = (
    "Ada Ben Cara Dan Ella Finn Gus Hana Ida Jack Kim Leo Mia Ned Olga Paul "
    "Rosa Sam Tess Uma Vic Walt Yara Zoe Amir Bea Carl Dora Eve Fred Gina Hugo"
).split()
COLOURS = "red blue green black white brown pink grey".split()
NOUNS = (
    "kite drum lamp book ring hat coat bell cup rope map flute stone key "
    "boat ball spoon shell mask clock brush vase coin scarf tent basket mirror ladder"
).split()

_OPENINGS = (
    "It was a cold morning at the market.",
    "The school was quiet that day.",
    "It was the last day of summer.",
    "The train was late again.",
    "There was a party by the river.",
    "It was a warm evening in the village.",
)
_HOLDS = (
    "{name} has the {thing}",
    "{name} found the {thing}",
    "{name} keeps the {thing}",
    "{name} was given the {thing}",
    "{name} bought the {thing}",
    "{name} is holding the {thing}",
    "the {thing} belongs to {name}",
    "the {thing} went to {name}",
)
_JOINS = (" and ", ", but ", ", while ")
_ASIDES = (
    "{name} likes the rain.",
    "{name} and {other} sat by the river.",
    "{name} sang an old song.",
    "{name} was late again.",
    "{name} talked to {other} about the party.",
    "A dog slept by the door.",
    "The wind was cold.",
    "There was tea for all.",
    "Nobody could find the {thing}.",
    "The {thing} was lost long ago.",
)


@dataclass(frozen=True)
class Story:
    """One story.

    Attributes:
        answer: name of the holder.
        holders: (thing, name), in the order of the text.
    """

    text: str
    question: str
    answer: str
    holders: tuple[tuple[str, str], ...]

    @property
    def prompt(self) -> str:
        """The input of the model: the story and its question."""
        return f"{self.text} {self.question}"

    @property
    def reply(self) -> str:
        """The trained continuation; the name comes last."""
        return reply_to(self.question, self.answer)

    def answered_by(self, text: str) -> bool:
        """Whether a completion names the right holder only."""
        words = {word.strip(".,!?") for word in text.split()}
        return words & set(NAMES) == {self.answer}


def question_about(thing: str) -> str:
    """Return the question who has a thing."""
    return f"Who has the {thing}?"


def reply_to(question: str, name: str) -> str:
    """Return the reply to a question, after a space."""
    thing = question.removeprefix("Who has the ").removesuffix("?")
    return f" The {thing} is with {name}."


def story(seed: int, holders: int = HOLDERS) -> Story:
    """Return the story of a seed, equal on every machine and version of Python.

    Args:
        seed: at least 0.
        holders: people who have something, 1 to 16.

    Raises:
        ValueError: a negative seed, or another number of holders.
    """
    if seed < 0:
        raise ValueError(f"story: seed must be 0 or more, got {seed}")
    if not 1 <= holders <= 16:
        raise ValueError(f"story: holders must be in 1 ... 16 (there are {len(NAMES)} names), got {holders}")
    rng = _Random(seed)
    names = rng.some(NAMES, holders)
    things, other_things = _things(rng, holders)
    pairs = tuple(zip(things, names, strict=True))
    sentences = _telling(rng, pairs)
    for aside in rng.some(_ASIDES, 3):
        name, other = rng.some(names, 1) + rng.some([name for name in NAMES if name not in names], 1)
        sentence = aside.format(name=name, other=other, thing=rng.one(other_things))
        sentences.insert(rng.below(len(sentences) + 1), sentence)
    thing, answer = rng.one(pairs)
    return Story(" ".join([rng.one(_OPENINGS), *sentences]), question_about(thing), answer, pairs)


class _Random:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, bound: int) -> int:
        return int(self._random.random() * bound)

    def one(self, items: Sequence[_T]) -> _T:
        return items[self.below(len(items))]

    def some(self, items: Sequence[_T], count: int) -> list[_T]:
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in range(count)]


def _things(rng: _Random, count: int) -> tuple[list[str], list[str]]:
    """Return `count` things and two others; neither colour nor noun is enough."""
    colours = rng.some(COLOURS, 4)
    nouns = rng.some(NOUNS, count)
    things = rng.some([f"{colour} {noun}" for colour in colours for noun in nouns], count + 2)
    return things[:count], things[count:]


def _telling(rng: _Random, pairs: Sequence[tuple[str, str]]) -> list[str]:
    sentences: list[str] = []
    rest = [rng.one(_HOLDS).format(name=name, thing=thing) for thing, name in pairs]
    while rest:
        clause = rest.pop(0)
        if rest and rng.below(3) == 0:
            clause += rng.one(_JOINS) + rest.pop(0)
        sentences.append(clause[0].upper() + clause[1:] + ".")
    return sentences
