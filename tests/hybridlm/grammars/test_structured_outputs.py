"""Structured outputs: every completion has its form, each lane its own, with and without drafts."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patched_functions import plant_fault
from random_traffic import completed, finished

import hybridlm
from hybridlm import Completion, GrammarError, SamplingParams
from hybridlm.grammars import Grammars, GrammarState, grammar_text, token_masks
from hybridlm.sampling import FILTERED, Sampling, sample_tokens
from ir_passes import IsolationError

PROMPT = "Once upon a time, once upon"
CHOICES = ["yes", "yesterday", "no", "maybe it is", 'a "b"']
OBJECT = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "k": {"enum": ["x", None, 2]}},
    "required": ["n", "k"],
    "additionalProperties": False,
}
FORMS: list[dict[str, Any]] = [
    {"choice": CHOICES},
    {"regex": "[a-c]{3,9}(d|--)"},
    {"json": OBJECT, "disable_any_whitespace": True},
    {"grammar": 'start: "<" WORD ("," WORD){1,2} ">"\nWORD: /[p-z]{1,4}/'},
]


def mask_words(vocab: int) -> int:
    """Words of a mask: one for 32 tokens."""
    return -(-vocab // 32)


def follows(text: str | None, form: Mapping[str, Any]) -> bool:
    """Whether a text has a form, without llguidance."""
    assert text is not None
    if "choice" in form:
        return text in form["choice"]
    if "json" in form:
        value = json.loads(text)
        return list(value) == ["n", "k"] and 0 <= value["n"] <= 99 and value["k"] in ("x", None, 2)
    return bool(re.fullmatch(form.get("regex", r"<[p-z]{1,4}(,[p-z]{1,4}){1,2}>"), text))


def asked(lm: hybridlm.LM, requests: Sequence[Mapping[str, Any]], **session: Any) -> list[Completion]:
    """Return the completions of requests with individual settings, in order."""
    with lm.session(**session) as running:
        for each in requests:
            running.submit(each.get("prompt", PROMPT), **{k: v for k, v in each.items() if k != "prompt"})
        completions = finished(running)
    return [completions[index] for index in sorted(completions)]


def ids(lm: hybridlm.LM, text: str) -> list[int]:
    assert lm.tokenizer is not None
    return lm.tokenizer.encode(text, add_special_tokens=False)


def grammars(lm: hybridlm.LM) -> Grammars:
    assert lm.tokenizer is not None
    return Grammars.of(lm.tokenizer, lm.config.vocab_size, lm.eos_token_ids)


class Proposed:
    """Drafter that proposes the rest of a text after its sampled beginning, else other tokens."""

    def __init__(self, prompt: int, texts: Sequence[Sequence[int]]):
        self._prompt, self._texts = prompt, texts

    def propose(self, token_ids: Sequence[int], k: int) -> list[int]:
        output = list(token_ids[self._prompt :])
        for text in self._texts:
            if output and list(text[: len(output)]) == output:
                return [*text[len(output) :], 7, 8, 9][:k]
        return [token_ids[-1], 18][:k]


@pytest.mark.slow
@pytest.mark.parametrize("drafts", [pytest.param(False, marks=pytest.mark.long), True])
def test_lanes_have_their_own_forms_and_change_no_others(
    text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch, drafts: bool
) -> None:
    """Lanes with grammars, without, greedy and sampled share reused rows; the others' bits stay."""
    monkeypatch.setattr("hybridlm.engine.speculation.Speculation.always", True)
    speculate = (lambda: Proposed(len(PROMPT), [ids(text_lm, choice) for choice in CHOICES])) if drafts else None
    plain: dict[str, Any] = {"prompt": "ababababab", "max_tokens": 9, "logprobs": 2}
    free_completions = {seed: asked(text_lm, [plain | {"temperature": 0.9, "seed": seed}])[0] for seed in range(4)}
    requests: list[dict[str, Any]] = []
    for seed, form in enumerate(FORMS):
        requests.append({"structured_outputs": form, "max_tokens": 40})
        requests.append(plain | {"temperature": 0.9, "seed": seed})
        requests.append({"structured_outputs": form, "temperature": 1.5, "top_p": 0.9, "seed": seed, "max_tokens": 40})
    steps = text_lm.engine.stats["verify_steps"]
    # Numbers of requests are part of the keys of random numbers.
    with text_lm.session(speculate=speculate() if speculate else None) as running:
        for number, item in enumerate(requests):
            prompt = item.get("prompt", PROMPT)
            rest = {key: value for key, value in item.items() if key != "prompt"}
            request = text_lm.text_model.inputs.request(number, prompt, SamplingParams(**rest))
            running.add(type(request)(**{**vars(request), "sampling_index": 0}))
        completions = finished(running)
    assert (text_lm.engine.stats["verify_steps"] > steps) is drafts
    for number, item in enumerate(requests):
        completion = completions[number]
        if "structured_outputs" in item:
            assert follows(completion.text, item["structured_outputs"]), completion
            assert completion.finish_reason == "stop"
        else:
            expected = free_completions[item["seed"]]
            assert completion.token_ids == expected.token_ids
            np.testing.assert_allclose(np.array(completion.logprobs), np.array(expected.logprobs), atol=1e-5)


@pytest.mark.parametrize("form", [None, {"regex": "[a-f]{9}"}, {"choice": ["xyzxyzxyz", "uvwuvwuvw"]}], ids=str)
def test_no_bit_of_other_lanes_depends_on_a_grammar(text_lm: hybridlm.LM, form: Any) -> None:
    """Compare tokens and log-probabilities next to this grammar, another one, and no grammar."""
    plain: list[dict[str, Any]] = [
        {"prompt": text, "max_tokens": 9, "logprobs": 2, "ignore_eos": True} for text in ("ababab", "cdcdcd")
    ]
    neighbour = {"prompt": "ababab", "max_tokens": 9, "temperature": 1.0, "logprobs": 2}
    constraint = {"ignore_eos": True} if form is None else {"structured_outputs": form}
    (_, *completions), (_, *expected) = (
        asked(text_lm, [neighbour | settings, *plain])
        for settings in (constraint, {"structured_outputs": {"regex": "9{9}"}})
    )
    assert [(completion.token_ids, completion.logprobs, completion.top_logprobs) for completion in completions] == [
        (completion.token_ids, completion.logprobs, completion.top_logprobs) for completion in expected
    ]


def reference(lm: hybridlm.LM, choices: Sequence[str], sampling: Sampling | None, prompt: list[int]) -> list[int]:
    """Return the tokens of one of the texts by `forward`, masking tokens without a text."""
    texts, output = [ids(lm, text) for text in choices], list[int]()
    (end,) = lm.eos_token_ids
    while True:
        allowed = {text[len(output)] for text in texts if text[: len(output)] == output and len(text) > len(output)}
        if not allowed:
            return output
        allowed |= {end} if output in texts else set()
        tokens = prompt + output
        logits = np.asarray(lm.forward([tokens + [0] * (60 - len(tokens))]).logits)[0, len(tokens) - 1].copy()
        logits[[token for token in range(logits.size) if token not in allowed]] = -np.inf
        if sampling is None:
            output.append(int(logits.argmax()))
        else:
            position, mode = jnp.array([len(prompt) + len(output)], jnp.int32), jnp.array(FILTERED, jnp.int32)
            output.append(int(sample_tokens(jnp.asarray(logits)[None], sampling, position, mode)[0]))
        if output[-1] == end:
            return output


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_tokens_match_masked_logits(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch, seed: int | None) -> None:
    """Temperature and filters apply after the mask; drafts are verified."""
    monkeypatch.setattr("hybridlm.engine.speculation.Speculation.always", True)
    prompt, choices = ids(text_lm, PROMPT), [*CHOICES, "yes no", "maybe it was"]
    settings: dict[str, Any] = {"structured_outputs": {"choice": choices}}
    sampling = None
    if seed is not None:
        settings |= {"temperature": 2.5, "top_k": 3, "top_p": 0.8, "min_p": 0.01, "seed": seed}
        scalars = [np.array([value], np.float32) for value in (2.5, 0.8, 0.01)]
        key = np.array([[0, seed]], np.uint32)
        sampling = Sampling(scalars[0], np.array([3], np.int32), scalars[1], scalars[2], key, np.zeros(1, np.uint32))
    expected = reference(text_lm, choices, sampling, prompt)
    accepted = text_lm.engine.stats["accepted_tokens"]
    for speculate in (None, Proposed(len(prompt), [ids(text_lm, choice) for choice in choices])):
        assert asked(text_lm, [settings], speculate=speculate)[0].token_ids == expected
    assert text_lm.engine.stats["accepted_tokens"] > accepted
    # Drafts that are not allowed are no drafts.
    drafted = text_lm.engine.stats["drafted_tokens"]
    assert asked(text_lm, [settings], speculate=Proposed(len(prompt), [[97 - 1] * 9]))[0].token_ids == expected
    assert text_lm.engine.stats["drafted_tokens"] == drafted


def test_drafts_end_where_the_grammar_does_not_allow_them(text_lm: hybridlm.LM) -> None:
    state = grammars(text_lm).state(grammar_text({"regex": "ab(c|d)e"}), [], [], None)
    a, b, c, e = ids(text_lm, "abce")
    assert [state.allowed(tokens) for tokens in ([a, b, c, e], [a, b, e], [b], [])] == [4, 2, 0, 0]
    masks = np.full((5, mask_words(97)), 0xFFFFFFFF, np.uint32)
    state.fill(masks, (a, b, c, c))
    assert [sorted(bits(row)) for row in masks[:4]] == [[a], [b], sorted(ids(text_lm, "cd")), [e]]
    # Probing has changed nothing.
    masks[:] = 0xFFFFFFFF
    state.fill(masks)
    assert bits(masks[0]) == {a} and state.fault is None


def bits(row: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


@pytest.mark.slow
def test_nan_behind_a_mask_is_found(text_lm: hybridlm.LM) -> None:
    engine, clean = text_lm.engine, text_lm.engine.params
    where = list(text_lm.params).index("embed_tokens")
    engine.params = tuple(p.at[9].set(jnp.nan) if i == where else p for i, p in enumerate(clean))
    try:
        with pytest.raises(hybridlm.NumericalError):
            text_lm.generate([[5, 6], [5, 9]], structured_outputs={"choice": CHOICES})
    finally:
        engine.params = clean


def settled_shapes(lm: hybridlm.LM) -> set[Any]:
    """Return the compiled shapes after the background thread has finished."""
    if (threads := lm.engine.programs._threads) is not None:
        threads.submit(int).result()
    return set(lm.engine.programs.shapes)


@pytest.mark.slow
def test_other_grammars_compile_no_steps(text_lm: hybridlm.LM) -> None:
    ask = {"max_tokens": 5, "min_tokens": 3, "logprobs": None}
    text_lm.generate([PROMPT], structured_outputs={"regex": "[a-z]+"}, **ask)
    shapes = settled_shapes(text_lm)
    text_lm.generate([PROMPT], structured_outputs={"regex": "[0-9]+|x"}, **ask)
    text_lm.generate([PROMPT], structured_outputs={"json": OBJECT}, repetition_penalty=1.5, **ask)
    assert settled_shapes(text_lm) == shapes
    assert text_lm.engine.shape("generate", 1, 1, changes=64, masked=True) in shapes


@pytest.mark.slow
def test_a_mask_that_reaches_another_lane_is_refused(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    programs, engine = text_lm.engine.programs, text_lm.engine
    fields: dict[str, Any] = {"changes": 64, "masked": True}
    shapes = [engine.shape("generate", 2, 1, 2, **fields), engine.shape("verify", 2, 3, 2, **fields)]
    for shape in shapes:
        programs.planned(shape, engine.example_arguments(shape))
    rolled = lambda masked_logits: lambda logits, mask: masked_logits(logits, jnp.roll(mask, 1, 0))
    plant_fault(monkeypatch, "hybridlm.steps.generate.masked_logits", rolled)
    for shape in shapes:
        with pytest.raises(IsolationError):
            programs.planned(shape, engine.example_arguments(shape))


@pytest.mark.slow
def test_the_end_comes_where_the_grammar_may_end(text_lm: hybridlm.LM) -> None:
    """A form that is unfinished at the token limit is reported in the finish reason."""
    (end,) = text_lm.eos_token_ids
    bias = {"logit_bias": {end: 80.0}, "max_tokens": 30}
    complete, part = asked(
        text_lm,
        [bias | {"structured_outputs": {"regex": "[ab]{4,}"}}, {"structured_outputs": FORMS[2], "max_tokens": 5}],
    )
    assert (
        complete.token_ids[-1] == end
        and re.fullmatch("[ab]{4}", complete.text or "")
        and complete.finish_reason == "stop"
    )
    assert part.finish_reason == "length" and len(part.token_ids) == 5


def test_no_token_left_ends_the_request_alone(text_lm: hybridlm.LM) -> None:
    a, b = ids(text_lm, "ab")
    with text_lm.session() as running:
        for settings in (
            {"structured_outputs": {"regex": "ab{2}"}, "bad_words": [[b]]},
            {"structured_outputs": {"regex": "abc"}, "min_tokens": 9, "max_tokens": 20},
            {"structured_outputs": {"regex": "[ab]c"}, "bad_words": [[a]]},
        ):
            running.submit(PROMPT, **settings)
        completions, errors = {}, []
        while running.busy:
            try:
                completions |= completed(running)
            except GrammarError as error:
                errors.append(str(error))
    assert list(completions) == [2] and completions[2].text == "bc"
    assert sorted(running.errors) == [0, 1]
    assert "request 0: no token is possible in place 28" in errors[0]
    assert "min_tokens is 9, structured_outputs end after 3" in str(running.errors[1])


def test_a_character_that_no_token_has(text_lm: hybridlm.LM) -> None:
    """The tokenizer has no "~"."""
    with pytest.raises(ValueError, match="structured_outputs: no token of the vocabulary can begin it"):
        text_lm.generate([PROMPT], structured_outputs={"regex": "~a"})
    with pytest.raises(GrammarError):
        text_lm.generate([PROMPT], structured_outputs={"regex": "[ab]~"})


def test_the_form_begins_after_the_thoughts(text_lm: hybridlm.LM) -> None:
    prompts = ["What? <t>", "What?"]
    form: Any = {"choice": ["yes", "no"]}
    thought, plain = text_lm.generate(
        prompts, structured_outputs=form, think_end="</t>", thinking_budget=6, max_tokens=30
    )
    assert thought.reasoning is not None and len(thought.reasoning) > 2 and thought.answer in form["choice"]
    assert len(thought.token_ids) == 6 + 4 + len(thought.answer or "")
    assert plain.text in form["choice"] and plain.reasoning is None
    state = grammars(text_lm).state(grammar_text({"regex": "a+"}), ids(text_lm, "x<t>"), [], "</t>")
    masks = np.full((3, mask_words(97)), 0xFFFFFFFF, np.uint32)
    state.fill(masks)
    assert (masks == 0xFFFFFFFF).all() and state.allowed(ids(text_lm, "ab")) == 0
    for token in ids(text_lm, "hm</t>"):
        assert not state.complete
        state.push(token)
    state.fill(masks)
    assert bits(masks[0]) == {*ids(text_lm, "a")}


SCALARS = st.sampled_from(
    [
        {"type": "boolean"}, {"type": "null"}, {"const": "c d"}, {"enum": ["a", 'q"\\', 7, None, False]},
        {"type": "integer", "minimum": -9, "maximum": 120}, {"type": "string", "maxLength": 3},
        {"type": "string", "pattern": "^[a-c]{1,3}$"},
    ]
)  # fmt: skip


def _larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.builds(
        lambda items, limit: {"type": "array", "items": items, "maxItems": limit}, inner, st.integers(0, 2)
    )
    names = st.lists(st.sampled_from(["a", "b c", 'd"']), unique=True, max_size=2)
    objects = names.flatmap(
        lambda keys: st.tuples(*[inner for _ in keys]).map(lambda of: dict(zip(keys, of, strict=True)))
    )
    return lists | objects.map(
        lambda of: {"type": "object", "properties": of, "required": list(of)[:1], "additionalProperties": False}
    )


def valid(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value follows one of the schemas of this test, by their definition."""
    if "enum" in schema or "const" in schema:
        options = schema.get("enum", [schema.get("const")])
        return any(value == option and type(value) is type(option) for option in options)
    kind = schema["type"]
    if kind == "array":
        fits = isinstance(value, list) and len(value) <= schema["maxItems"]
        return fits and all(valid(item, schema["items"]) for item in value)
    if kind == "object":
        named = isinstance(value, dict) and set(schema["required"]) <= set(value) <= set(schema["properties"])
        return named and all(valid(value[name], schema["properties"][name]) for name in value)
    if kind == "integer":
        return type(value) is int and -9 <= value <= 120
    if kind == "string":
        short = isinstance(value, str) and len(value) <= 3
        return short and re.fullmatch(schema.get("pattern", ".*"), value, re.DOTALL) is not None
    return type(value) is {"boolean": bool, "null": type(None)}[kind]


@pytest.mark.slow
@given(schema=st.recursive(SCALARS, _larger, max_leaves=4), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_random_schemas(text_lm: hybridlm.LM, schema: dict[str, Any], seed: int) -> None:
    form: Any = {"json": schema, "disable_any_whitespace": True}
    settings = {"max_tokens": 200, "temperature": 2.0, "seed": seed, "speculate": "ngram"}
    for completion in text_lm.generate(["x", "y"], structured_outputs=form, **settings):
        assert completion.finish_reason == "stop" and valid(json.loads(completion.text or ""), schema), completion.text


BAD_FORMS: list[tuple[Any, str]] = [
    ("json", "expected a mapping with one of json"),
    ({"jsn": {}}, "expected a mapping with one of json"),
    ({}, "expected exactly one of .*, got none"),
    ({"regex": "a", "choice": ["b"]}, "expected exactly one of .*, got regex, choice"),
    ({"regex": "(a"}, "cannot be compiled: .*unclosed group"),
    ({"regex": r"(a)\1"}, "cannot be compiled: .*backreferences are not supported"),
    ({"regex": 3}, "regex: expected a string"),
    ({"choice": []}, "choice: expected a list of texts"),
    ({"choice": ["a", ""]}, "choice: expected a list of texts"),
    ({"choice": "yes"}, "choice: expected a list of texts"),
    ({"grammar": 'start: "a" b'}, "cannot be compiled: .*unknown name"),
    ({"json": "{"}, "json: expected a JSON schema"),
    ({"json": '{"type": "object", "type": "array"}'}, "json: expected a JSON schema: duplicate keys"),
    ({"json": [1]}, "json: expected a JSON schema, which is an object"),
    ({"json": {"type": "array", "uniqueItems": True}}, 'Unimplemented keys: ."uniqueItems"'),
    ({"json": {"type": "list"}}, "cannot be compiled: Invalid type: list"),
    ({"json": {"$ref": "http://x.invalid/y"}}, "cannot be compiled: .*not present in a registry"),
    ({"json": {"x-guidance": {"lenient": True}, "uniqueItems": True}}, "is not followed in full: Unimplemented keys"),
    ({"json_object": 1}, "json_object: expected True"),
    ({"regex": "a", "disable_any_whitespace": True}, "disable_any_whitespace: expected True or False, with json"),
    ({"regex": "a" * 4_000_001}, "regex: expected at most 4000000 characters"),
]


@pytest.mark.parametrize(("form", "message"), BAD_FORMS, ids=range(len(BAD_FORMS)))
def test_forms_that_are_refused(text_lm: hybridlm.LM, form: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^structured_outputs: .*{message}|^structured_outputs: {message}"):
        text_lm.generate([PROMPT], structured_outputs=form)


class Answer(pydantic.BaseModel):
    n: int = pydantic.Field(ge=0, le=99)
    k: Literal["x", "y"]


def test_a_class_of_pydantic_is_its_schema(text_lm: hybridlm.LM) -> None:
    """Each completion is an object of the class; the class of a value alone has no schema."""
    assert grammar_text({"json": Answer}) == grammar_text({"json": Answer.model_json_schema()})
    form: Any = {"json": Answer, "disable_any_whitespace": True}
    for seed in range(3):
        (completion,) = text_lm.generate(PROMPT, max_tokens=60, temperature=1.0, seed=seed, structured_outputs=form)
        assert Answer.model_validate_json(completion.text or "").n in range(100)
    with pytest.raises(ValueError, match="json: expected a JSON schema"):
        grammar_text({"json": int})


def test_settings_that_do_not_go_with_a_form(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    form: Any = {"json_object": True}
    with pytest.raises(ValueError, match="structured_outputs: expected ignore_eos=False"):
        text_lm.generate([PROMPT], structured_outputs=form, ignore_eos=True)
    with monkeypatch.context() as without:
        without.setattr(text_lm, "tokenizer", None)
        with pytest.raises(ValueError, match="structured_outputs: needs a tokenizer"):
            text_lm.generate([[5]], structured_outputs=form)
    monkeypatch.setattr("hybridlm.errors.find_spec", lambda package: None)
    with pytest.raises(hybridlm.MissingExtra, match=r"hybridlm\[grammar\]"):
        text_lm.generate([PROMPT], structured_outputs=form)


def test_texts_of_all_characters(text_lm: hybridlm.LM) -> None:
    """Choices are texts, not patterns, whatever characters they have; thousands are one form."""
    assert text_lm.tokenizer is not None
    directory = hybridlm.demo.path()
    tokenizer = type(text_lm.tokenizer).from_dir(directory)
    assert tokenizer is not None
    grammars = Grammars.of(tokenizer, 596, (0,))
    for choices in (
        [f"a{chr(code)}b" for code in [*range(1, 0x180), 0x2028, 0xFEFF, 0x1F600]],
        [f"item number {i * 7919}" for i in range(3000)],
    ):
        text = grammar_text({"choice": choices})
        for choice in choices[:: len(choices) // 100]:
            state = grammars.state(text, [], tokenizer.encode(choice), None)
            assert state.fault is None and _may_end(state), choice


def test_tokens_that_the_model_has_not_are_left_out() -> None:
    """The model has 80 of the 596 tokens of a tokenizer."""
    from hybridlm.text import Tokenizer

    tokenizer = Tokenizer.from_dir(hybridlm.demo.path())
    assert tokenizer is not None
    grammars = Grammars.of(tokenizer, 80, (0,))
    states = [None, grammars.state(grammar_text({"regex": "[a-z]+"}), [], [], None)]
    for drafts, shape in ((None, (2, 3)), (((), ()), (2, 1, 3))):
        masks = token_masks(states, mask_words(80), drafts)
        assert masks is not None and masks.shape == shape
        letters = {token for token in bits(masks[1].reshape(-1)) if token < 80}
        assert letters == {token for token in range(80) if re.fullmatch("[a-z]+", tokenizer.decode([token]))}


def _may_end(state: GrammarState) -> bool:
    masks = np.full((1, mask_words(596)), 0xFFFFFFFF, np.uint32)
    state.fill(masks)
    return 0 in bits(masks[0])


def test_grammars_are_kept_while_their_tokenizer_lives() -> None:
    from hybridlm.text import Tokenizer

    def kept() -> Iterator[int]:
        tokenizer = Tokenizer.from_dir(hybridlm.demo.path())
        assert tokenizer is not None
        count = len(Grammars._by_tokenizer)
        assert Grammars.of(tokenizer, 596, (0,)) is Grammars.of(tokenizer, 596, (0,))
        yield len(Grammars._by_tokenizer) - count
        del tokenizer
        yield len(Grammars._by_tokenizer) - count

    assert list(kept()) == [1, 0]
