"""A checkpoint's tokenizer: ids and text, streams, sandboxed chat templates."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from hybridlm.checkpoint import CheckpointError
from hybridlm.text.chat_template import ChatTemplate, ChatTemplateError
from hybridlm.text.stream_decoder import StreamDecoder
from hybridlm.text.tokenizer import Tokenizer

END, START = "<|im_end|>", "<|im_start|>"
TEMPLATE = """{%- if tools %}{{ tools | tojson }}
{% endif %}
{%- for message in messages %}
    {%- set loud = namespace(value=false) %}
    {%- if message.role == 'user' %}{% set loud.value = true %}{% endif %}
    {%- if message.content is not string %}{{ raise_exception('Only text: ' ~ message.role) }}{% endif %}
{{ '<|im_start|>' + message['role'] }}
{% generation %}{{ message.content.strip() }}{% endgeneration %}{{ '!' if loud.value }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}
<|im_start|>assistant
{{ '<think>' if enable_thinking is defined and enable_thinking }}{% endif %}"""
CHAT = [{"role": "system", "content": "Sei höflich."}, {"role": "user", "content": ' Wo ist <b>"Ada"</b>?\n'}]
SAMPLES = [
    "", "Ada has the green kite.", "  two  spaces ", "naïve 中文 🙂🏽 👨‍👩‍👧 e\u0301", f"a{END}b", "\r\n\t\x00",
    "a\ufffdb",
]  # fmt: skip


def bytelevel() -> tokenizers.Tokenizer:
    """A byte-level BPE, as Qwen's: most characters beyond ASCII are several tokens."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(["Ada has the green kite. Ben has the red ball. 中文"] * 4, trainer)
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("<|endoftext|>", START, END)])
    return backend


def byte_fallback() -> tokenizers.Tokenizer:
    """A vocabulary with byte fallback and a leading space that is dropped, as Llama's."""
    vocabulary = {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3, "é": 4} | {f"<0x{byte:02X}>": 5 + byte for byte in range(256)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def save(directory: Path, template: Any = TEMPLATE, backend: tokenizers.Tokenizer | None = None, **config: Any) -> Path:
    (backend or bytelevel()).save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "clean_up_tokenization_spaces": False}
    settings |= {"chat_template": template, **config}
    (directory / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
    return directory


def load(directory: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_dir(directory)
    assert tokenizer is not None
    return tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(save(tmp_path_factory.mktemp("tokenizer")))


@pytest.mark.parametrize("text", SAMPLES)
def test_text_survives(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert all(0 <= token < tokenizer.vocab_size for token in ids)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.decode(ids) == text.replace(END, "")


def test_special_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos_token_id == tokenizer.token_to_id(END) == tokenizer.vocab_size - 1
    assert tokenizer.bos_token_id is None and tokenizer.token_to_id("no such token") is None
    assert tokenizer.encode(END) == [tokenizer.eos_token_id]


def test_added_tokens_around_a_text_can_be_left_out(tmp_path: Path) -> None:
    backend = bytelevel()
    start = backend.token_to_id(START)
    backend.post_processor = tokenizers.processors.TemplateProcessing(f"{START} $A", special_tokens=[(START, start)])
    tokenizer = load(save(tmp_path, backend=backend, bos_token={"content": START, "special": True}))
    assert tokenizer.encode("a") == [start, *tokenizer.encode("a", add_special_tokens=False)]
    # A text that begins with the token has two, as in transformers; a chat with a written token has one.
    assert tokenizer.encode(f"{START}a")[:3] == [start, start, *tokenizer.encode("a", add_special_tokens=False)[:1]]
    template = "{{ bos_token }}{{ messages[0].content }}"
    assert start is not None and tokenizer.encode_chat(CHAT[:1], chat_template=template).count(start) == 1
    assert tokenizer.bos_token_id == start


def test_a_saved_truncation_or_padding_is_switched_off(tmp_path: Path) -> None:
    backend = bytelevel()
    backend.enable_truncation(3)
    backend.enable_padding(length=500)
    tokenizer = load(save(tmp_path, backend=backend))
    text = "Ada has the green kite, and more than three tokens" * 3
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_tokens_that_only_the_config_has(tmp_path: Path) -> None:
    size = bytelevel().get_vocab_size()
    added = {str(size): {"content": "<think>", "special": False}, str(size + 1): {"content": "<pad>", "special": True}}
    tokenizer = load(save(tmp_path, added_tokens_decoder=added))
    assert tokenizer.encode("a<think><pad>")[1:] == [size, size + 1]
    assert tokenizer.decode([size, size + 1]) == "<think>"
    with pytest.raises(CheckpointError, match=r"added_tokens_decoder\[999\]: expected '<new>' at that id, found"):
        load(save(tmp_path, added_tokens_decoder={"999": {"content": "<new>"}}))


def test_a_token_with_a_role_is_special(tmp_path: Path) -> None:
    backend = bytelevel()
    backend.add_tokens(["<eot>"])
    tokenizer = load(save(tmp_path, backend=backend, eos_token="<eot>", pad_token="kite"))
    assert tokenizer.decode(tokenizer.encode("a<eot>")) == "a"
    assert tokenizer.decode(tokenizer.encode("a kite b")) == "a  b"


def test_a_token_that_no_file_has_gets_the_next_id(tmp_path: Path) -> None:
    assert load(save(tmp_path, eos_token="<gone>")).eos_token_id == bytelevel().get_vocab_size()


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_text_that_is_not_unicode(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(ValueError, match="not valid Unicode"):
        tokenizer.encode(text)


def test_ids_outside_the_vocabulary(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([tokenizer.vocab_size + 5, *tokenizer.encode("a")]) == "a"
    for bad in (-1, 2**32):
        with pytest.raises(ValueError, match=f"got .{bad}"):
            tokenizer.decode([bad])


def test_no_tokenizer(tmp_path: Path) -> None:
    assert Tokenizer.from_dir(tmp_path) is None
    (tmp_path / "vocab.json").touch()
    with pytest.warns(UserWarning, match="found vocab.json but no tokenizer.json"):
        assert Tokenizer.from_dir(tmp_path) is None


@pytest.mark.parametrize(("name", "content", "message"), [
    ("tokenizer.json", b"{}", "cannot be read"),
    ("tokenizer.json", b"\xff", "expected UTF-8"),
    ("tokenizer_config.json", b"[]", "expected a JSON object"),
    ("tokenizer_config.json", b'{"extra_special_tokens": [3]}', "extra_special_tokens: expected a token, found 3"),
    ("tokenizer_config.json", b'{"extra_special_tokens": 3}', "extra_special_tokens: expected a list or an object"),
    ("tokenizer_config.json", b'{"chat_template": {"default": 3}}', "chat_template: expected a string, or a list"),
    ("tokenizer_config.json", b'{"eos_token": 3}', "eos_token: expected a token, found 3"),
    ("tokenizer_config.json", b'{"chat_template": [{"name": "x"}]}', "chat_template: expected a string, or a list"),
    ("tokenizer_config.json", b'{"added_tokens_decoder": {"x": {}}}', "added_tokens_decoder: expected an object"),
    ("tokenizer_config.json", b" " * 16_000_001, "at most 16,000,000 bytes"),
    ("chat_template.jinja", b" " * 4_000_001, "at most 4,000,000 bytes"),
])  # fmt: skip
def test_bad_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (save(tmp_path) / name).write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.from_dir(tmp_path)
    assert message in str(caught.value) and name in str(caught.value)


def pieces(decoder: StreamDecoder, ids: Sequence[int]) -> list[str]:
    return [*(decoder.push(token) for token in ids), decoder.flush()]


def test_a_character_is_never_given_in_halves(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a🙂b")
    assert len(ids) == 6
    assert pieces(tokenizer.stream(), ids) == ["a", "", "", "", "🙂", "b", ""]
    assert pieces(tokenizer.stream(), ids[:3]) == ["a", "", "", "\ufffd"]


def test_a_flushed_stream_starts_again(tokenizer: Tokenizer) -> None:
    decoder = tokenizer.stream()
    ids = tokenizer.encode("🙂")
    assert [decoder.push(token) for token in ids[:2]] == ["", ""]
    assert decoder.flush() == "\ufffd" and decoder.flush() == ""
    assert pieces(decoder, ids)[-2:] == ["🙂", ""]


def test_special_tokens_in_a_stream(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(f"a{END}b")
    assert pieces(tokenizer.stream(), ids) == ["a", "", "b", ""]
    assert pieces(tokenizer.stream(skip_special_tokens=False), ids) == ["a", END, "b", ""]


def test_long_streams_of_broken_utf8(tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    first, *_, last = tokenizer.encode("🙂")
    longest = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return tokenizer.decode(ids)

    for ids in ([first] * 1000, [last] * 1000, [rng.choice([first, last]) for _ in range(1000)]):
        assert "".join(pieces(StreamDecoder(decode), ids)) == tokenizer.decode(ids)
    # A character that would be cut in two where the window is.
    for initial in range(24, 36):
        ids = [last] * initial + tokenizer.encode("🙂") + [last] * 60
        assert "".join(pieces(StreamDecoder(decode), ids)) == tokenizer.decode(ids)
    assert longest < 100


def test_byte_fallback_and_leading_space() -> None:
    tokenizer = Tokenizer(byte_fallback())
    ids = [3, 3, *(5 + byte for byte in "🙂".encode()), 1, 4, 3]
    assert pieces(tokenizer.stream(), ids) == ["a", " a", "", "", "", "", "🙂 ", "é", " a", ""]
    assert tokenizer.decode(ids) == "a a🙂 é a"


def test_chat(tokenizer: Tokenizer) -> None:
    expected = f'{START}system\nSei höflich.{END}\n{START}user\nWo ist <b>"Ada"</b>?!{END}\n'
    assert tokenizer.apply_chat_template(CHAT, add_generation_prompt=False) == expected
    assert tokenizer.apply_chat_template(CHAT) == f"{expected}{START}assistant\n"
    assert tokenizer.apply_chat_template(CHAT, enable_thinking=True).endswith("assistant\n<think>")
    assert tokenizer.apply_chat_template(CHAT, tools=[{"a": "<ö>"}]).startswith('[{"a": "<ö>"}]\n')
    assert tokenizer.encode(expected, add_special_tokens=False)[0] == tokenizer.token_to_id(START)


def test_where_templates_come_from(tmp_path: Path) -> None:
    source = lambda text: text + "{{ messages[0].content }}"
    named = [{"name": name, "template": source(name)} for name in ("default", "tool_use", "rag")]
    tokenizer = load(save(tmp_path, named))
    assert tokenizer.apply_chat_template(CHAT) == "defaultSei höflich."
    assert tokenizer.apply_chat_template(CHAT, tools=[]).startswith("tool_use")
    assert tokenizer.apply_chat_template(CHAT, chat_template="rag").startswith("rag")
    with pytest.raises(
        ChatTemplateError, match="no chat template named 'x', expected chat_template=one of default, rag"
    ):
        tokenizer.apply_chat_template(CHAT, chat_template="x")
    with pytest.raises(ChatTemplateError, match="one of rag"):
        load(save(tmp_path, named[2:])).apply_chat_template(CHAT)
    (save(tmp_path, named) / "chat_template.jinja").write_text(source("file"))
    assert load(tmp_path).apply_chat_template(CHAT).startswith("file")


def test_no_template(tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match="has no chat template.*use generate"):
        load(save(tmp_path, None)).apply_chat_template(CHAT)


@pytest.mark.parametrize("escape", [
    "{{ ''.__class__ }}", "{{ ''.__class__.__mro__ }}", "{{ ''['__class__']['__mro__'][1]['__subclasses__']() }}",
    "{{ ''|attr('__class__')|attr('__mro__') }}", "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "{{ '{x.__class__}'.format_map({'x': messages}) }}", "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__['json'] }}", "{{ namespace.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('true').read() }}", "{{ self._TemplateReference__context }}",
    "{{ namespace(__class__=1) }}", "{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}", "{{ messages[0].clear() }}",
    "{{ (messages|map(attribute='__class__')|list)[0].__mro__ }}", "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}", "{% for i in range(10**9) %}{% endfor %}",
])  # fmt: skip
def test_sandbox(escape: str) -> None:
    template = "{{ messages[0].role }}" + escape
    chat = [{"role": "user", "content": "x"}]
    with pytest.raises(ChatTemplateError):
        ChatTemplate(template).render(chat)
    assert chat == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("source", ["{{ oops", "{% for m in messages %}", "hello", "{{ 'messages' }}", "{{ message }}"])
def test_templates_that_cannot_be_used(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="chat template: "):
        ChatTemplate(source)


@pytest.mark.parametrize("source", ["{{ messages[0].x.y }}", "{{ messages + 1 }}", "{{ messages[1 // 0] }}"])
def test_templates_that_fail(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="chat template: "):
        ChatTemplate(source).render(CHAT)


def test_variables_of_the_assistants_text_stay_inside() -> None:
    """transformers makes the block a call (`AssistantTracker`)."""
    source = "{% set a = 1 %}{% for m in messages %}{% generation %}{% set a = a + 1 %}{{ a }}{{ m.content }}"
    template = ChatTemplate(source + "{{ loop.index }}{% endgeneration %}{{ a }}{% endfor %}")
    assert template.render([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]) == "2x112y21"


def test_raise_exception_passes_its_message(tokenizer: Tokenizer) -> None:
    with pytest.raises(ChatTemplateError, match="Only text: user"):
        tokenizer.apply_chat_template([{"role": "user", "content": ["a", "b"]}])


def test_bad_messages(tokenizer: Tokenizer) -> None:
    with pytest.raises(ChatTemplateError, match="at least one message"):
        tokenizer.apply_chat_template([])
    with pytest.raises(ChatTemplateError, match=r"messages\[1\]: expected a role, found the keys \['content'\]"):
        tokenizer.apply_chat_template([CHAT[0], {"content": "x"}])
    for message in ({"role": "user"}, {"role": "system", "content": None}, {"role": "user", "contents": "x"}):
        with pytest.raises(ChatTemplateError, match=r"messages\[1\]: expected content, found the keys \['"):
            tokenizer.apply_chat_template([CHAT[0], message])
    template = ChatTemplate("{{ messages }}")
    with pytest.raises(TypeError, match=r"messages\[0\].content\[0\]: expected str.*got object"):
        template.render([{"role": "user", "content": [object()]}])


def test_messages_are_not_changed(tokenizer: Tokenizer) -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.keys()|list }}{% endfor %}")
    assert template.render([{"role": "user", "content": "x", "tool_calls": None}]) == "['role', 'content']"
    assert ChatTemplate("{{ messages }}{{ strftime_now('%Y')|length }}").render([{"role": "u"}]) == "[{'role': 'u'}]4"


@pytest.mark.oracle
def test_as_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    lm = load(save(tmp_path, bos_token="<|endoftext|>"))
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(reference) == lm.vocab_size and reference.eos_token_id == lm.eos_token_id
    for text in SAMPLES:
        ids = reference.encode(text)
        assert lm.encode(text) == ids
        for skip in (True, False):
            assert lm.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip)
    chats = [CHAT, CHAT[1:], [*CHAT, {"role": "assistant", "content": "Da.", "tool_calls": None}]]
    for chat in chats:
        choices: tuple[dict[str, Any], ...] = ({}, {"tools": [{"type": "function", "ä": 1}]}, {"enable_thinking": True})
        for options in choices:
            for prompt in (True, False):
                expected = reference.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompt, **options)
                assert lm.apply_chat_template(chat, prompt, **options) == expected
    ids = reference.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]
    assert lm.encode(lm.apply_chat_template(CHAT), add_special_tokens=False) == ids
