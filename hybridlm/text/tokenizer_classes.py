"""Tokenizer classes of transformers that ignore most of tokenizer.json.

`AutoTokenizer` chooses a class by tokenizer_config.json and the model's type. Most use tokenizer.json unchanged; these
take vocabulary, merges and post-processor from it, and define normaliser, pre-tokenizer, decoder and default special
tokens.
"""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers

from hybridlm.gguf_files.companions import GGUF_TOKENIZER, SPLITS
from ir_passes.files.user_warnings import warn_user
from models.families.tokenizers import CORRECTED, PLAIN, REGISTERED

_END = "<|endoftext|>"
DEFAULTS: dict[str, dict[str, str | None]] = {
    "GPT2Tokenizer": {"bos_token": _END, "eos_token": _END, "unk_token": _END},
    "GPTNeoXTokenizer": {"bos_token": _END, "eos_token": _END, "unk_token": _END, "pad_token": "<|padding|>"},
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "Qwen2Tokenizer": {"eos_token": _END, "unk_token": _END, "pad_token": _END},
    "Qwen3_5Tokenizer": {"eos_token": _END, "unk_token": _END, "pad_token": _END},
}
"""Class -> default special tokens."""
WORDS = {"Qwen2Tokenizer": SPLITS["qwen2"], "Qwen3_5Tokenizer": SPLITS["qwen35"]}
"""Class -> pattern of separately tokenised pieces."""
NOT_BUILT = frozenset(
    f"{name}Tokenizer"
    for name in (
        "Albert Bart Barthez Bartpho Bert BertGeneration BertJapanese Bertweet BigBird BioGpt Blenderbot "
        "BlenderbotSmall ByT5 CLIP CTRL Camembert Canine Clvp CodeGen CodeLlama Cohere Cpm CpmAnt "
        "DPRContextEncoder DPRQuestionEncoder DPRReader Deberta DebertaV2 Dia DistilBert Esm Esmc FSMT "
        "FastSpeech2Conformer Flaubert Funnel GPTNeoXJapanese GPTSw3 Gemma Herbert LED Lasr LayoutLMv2 LayoutLMv3 "
        "LayoutXLM Luke Lxmert M2M100 MBart MBart50 MLuke MPNet Marian MarkupLM Mgpstr MobileBert Mvp MyT5 Nllb "
        "Nougat OpenAIGPT PLBart Parakeet Pegasus Perceiver Phobert Pop2Piano ProphetNet Rag Reformer RemBert "
        "RoCBert RoFormer Roberta SeamlessM4T Siglip Siglip2 Speech2Text SpeechT5 Splinter SqueezeBert T5 Tapas "
        "Tipsv2 Udop VideoPrism Vits Wav2Vec2CTC Wav2Vec2PhonemeCTC Whisper XGLM XLM XLMRoberta XLNet"
    ).split()
)


def class_of(settings: Mapping[str, Any], config: Mapping[str, Any], byte_level: bool) -> str:
    """Return transformers' class; `PLAIN` for an unchanged tokenizer.json.

    Raises:
        ValueError: an unknown pipeline.
    """
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    if not isinstance(named, str | None):
        raise ValueError(f"tokenizer_class: expected the name of a class, found {named!r}")
    if named == GGUF_TOKENIZER:
        return PLAIN
    named = None if named is None else named.removesuffix("Fast")
    kind = str(config.get("model_type"))
    registered = REGISTERED.get(kind)
    code = settings.get("auto_map")
    if code.get("AutoTokenizer") if isinstance(code, dict) else code:
        warn_user(
            "tokenizer_config.json: auto_map names a tokenizer in Python code of the checkpoint, which is not run: "
            "the ids are those that transformers has without trust_remote_code",
        )
    elif named == "LlamaTokenizer" and byte_level and kind not in CORRECTED:
        return PLAIN
    elif registered is not None and (registered == PLAIN or kind in CORRECTED):
        return registered
    chosen = named or registered or PLAIN
    if chosen in NOT_BUILT:
        raise ValueError(
            f"tokenizer_class: transformers' {chosen} does not use tokenizer.json as it is, and is not implemented "
            f"here. If tokenizer.json is right, write {PLAIN} instead of it in tokenizer_config.json"
        )
    return chosen if chosen in DEFAULTS else PLAIN


def build(name: str, backend: Tokenizer, settings: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer of a class in `DEFAULTS`, without added tokens.

    Raises:
        ValueError: tokenizer.json has another model than the class.
    """
    model: Any = backend.model
    kind = type(model).__name__
    if kind != "BPE" or model.continuing_subword_prefix or model.end_of_word_suffix:
        raise ValueError(
            f"tokenizer_class: {name} needs BPE without a prefix or suffix in tokenizer.json, found {kind}"
        )
    llama = name == "LlamaTokenizer"
    model.dropout = model.unk_token = None
    model.fuse_unk = model.byte_fallback = llama
    model.ignore_merges = False
    built = Tokenizer(model)
    space = settings.get("add_prefix_space")
    if llama:
        space = space is None or bool(space)
        scheme = ("always" if settings.get("legacy") else "first") if space else "never"
        built.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
        strip = [decoders.Strip(content=" ", left=1)] if space else []
        built.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )
    else:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=bool(space), use_regex=name not in WORDS)
        split = [pre_tokenizers.Split(Regex(WORDS[name]), "isolated")] if name in WORDS else []
        built.pre_tokenizer = pre_tokenizers.Sequence([*split, byte_level])
        built.decoder = decoders.ByteLevel()
    if name != "GPT2Tokenizer" and not llama:
        built.normalizer = normalizers.NFC()
    if name != "GPTNeoXTokenizer":
        built.post_processor = backend.post_processor
    return built


def finish(name: str, backend: Tokenizer, special: list[str]) -> None:
    if name == "Qwen2Tokenizer":
        backend.add_tokens([AddedToken(token, special=True) for token in special])
