"""hybridlm as a model of lm_eval (extra `eval`), under the name "hybridlm".

import lm_eval
from hybridlm.evals import HybridLM

lm_eval.simple_evaluate(model=HybridLM("directory-or-hub-id"), tasks=["hellaswag"])
"""

# Without lm_eval its types are not known.
# pyright: reportMissingImports=false

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import lm_eval.models  # noqa: F401  # lm_eval registers its own models only while no other one is registered
import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from hybridlm.lm import LM
from hybridlm.loading import load
from hybridlm.progress import counting_progress
from hybridlm.requests.eval_settings import generation_settings
from hybridlm.scoring.pairs import encode_pair, encode_text
from hybridlm.scoring.perplexity import prefix_token, rolling_windows
from hybridlm.scoring.scorer import checked
from hybridlm.text.chat_template import joined_variables
from hybridlm.text.tokenizer import Tokenizer

MAX_GEN_TOKS = 256
"""lm_eval's default `max_gen_toks`."""
MAX_QUEUED = 1024
"""Requests of one queue; bounds the results in memory."""


class HybridLM(TemplateLM):
    """A model of lm_eval.

    Texts are tokenized, and truncated on the left, like lm_eval's "hf" model; `encode_pair` has its boundary of context
    and continuation, unlike `LM.score` and `LM.choose`.

    Args:
        pretrained: checkpoint directory, Hub id, or loaded model.
        batch_size: lanes to load; None or "auto" for the default.
        seed: of tasks that sample.
        enable_thinking: None leaves it to the template.
        chat_template_args: other template variables.
        think_end_token: unknown end marker of thoughts.
        thinking_budget: most tokens of thoughts; with any of these but `chat_template_args`, tasks get answers without
            thoughts.
        **options: of `hybridlm.load`.

    Raises:
        ValueError: the model has no tokenizer.
        TypeError: options for a loaded model.
    """

    def __init__(
        self,
        pretrained: str | LM,
        batch_size: int | str | None = None,
        seed: int = 0,
        enable_thinking: bool | None = None,
        chat_template_args: Mapping[str, Any] | None = None,
        think_end_token: str | None = None,
        thinking_budget: int | None = None,
        **options: Any,
    ):
        super().__init__()
        if batch_size not in (None, "auto"):
            options["lanes"] = int(batch_size)
        if not isinstance(pretrained, LM):
            pretrained = load(pretrained, **options)
        elif options:
            raise TypeError(f"{', '.join(options)}: {pretrained!r} is loaded already; give options to hybridlm.load")
        if pretrained.tokenizer is None:
            raise ValueError(f"{pretrained.path}: has no tokenizer.json; the tasks of lm_eval are texts")
        self.lm = pretrained
        self.max_length = pretrained.engine.longest
        self._texts: Tokenizer = pretrained.tokenizer
        self._seed = seed
        thinking_variables = self._texts.thinking_variables(enable_thinking)
        self._variables = joined_variables(thinking_variables, chat_template_args or {})
        if self._variables:
            self._texts.require_variables(**self._variables)
        thinking = (enable_thinking, think_end_token, thinking_budget)
        self._answers = any(setting is not None for setting in thinking)
        self._thinking = {"think_end": think_end_token, "thinking_budget": thinking_budget}

    @property
    def eot_token_id(self) -> int:
        """The tokenizer's EOS token, else the model's."""
        end = self._texts.eos_token_id
        return prefix_token(None, self.lm.eos_token_ids) if end is None else end

    @property
    def prefix_token_id(self) -> int:
        """Token before a text."""
        return prefix_token(self._texts, self.lm.eos_token_ids)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **unused: Any) -> list[int]:
        """Return token ids, by default with special tokens."""
        if add_special_tokens is None:
            return encode_text(string, self._texts, self.prefix_token_id)
        return self._texts.encode(string, add_special_tokens)

    @property
    def tokenizer_name(self) -> str:
        """Name of the cache of requests."""
        return self.lm.path.name

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return a template's source by name; the default one for True."""
        if not chat_template:
            return None
        return self._texts.chat_templates.get(chat_template if isinstance(chat_template, str) else "default")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return a conversation's text; without a generation prompt up to the last message."""
        text = self._texts.apply_chat_template(chat_history, add_generation_prompt, **self._variables)
        if add_generation_prompt:
            return text
        last = chat_history[-1]["content"]
        place = text.rfind(last.strip())
        if place < 0:
            raise ValueError(f"chat template: expected the last message, {last!r}, in its output, found none")
        # As in transformers, white space at its end stays if the template keeps it.
        message = last.lstrip() if text.startswith(last.lstrip(), place) else last.strip()
        return text[: place + len(message)]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and whether its tokens are greedy.

        Raises:
            ValueError: a continuation has no tokens or more than the context.
        """
        pairs: list[Any] = []
        for request in requests:
            texts: Any = request.args
            context, continuation = texts
            pairs.append((texts, *encode_pair(context, continuation, self._texts, self.prefix_token_id)))
        return self._loglikelihood_tokens(pairs)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **unused: Any
    ) -> list[tuple[float, bool]]:
        results = []
        for names, _, continuation in requests:
            if not 0 < len(continuation) <= self.max_length:
                raise ValueError(
                    f"loglikelihood: expected a continuation of 1..{self.max_length} tokens, got {len(continuation)}: "
                    f"context and continuation {names!r:.1000}"
                )
        for window in _windows(requests):
            texts = [tuple((context + continuation)[-self.max_length - 1 :]) for _, context, continuation in window]
            scores = checked(self.lm.text_model.scores(texts))
            for (names, _, continuation), text, score in zip(window, texts, scores, strict=True):
                first = len(text) - len(continuation)
                total = float(np.sum(score.logprobs[first:], dtype=np.float64))
                results.append((total, bool(score.greedy[first:].all())))
                self.cache_hook.add_partial("loglikelihood", names, results[-1])
        return results

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return log-likelihoods of texts by rolling windows (see `LM.perplexity`)."""
        results = []
        for window in _windows(requests):
            texts = [
                rolling_windows(self.tok_encode(request.args[0]), self.prefix_token_id, self.max_length + 1)
                for request in window
            ]
            scores = iter(checked(self.lm.text_model.scores([tokens for parts in texts for tokens, _ in parts])))
            for request, parts in zip(window, texts, strict=True):
                logprobs = [next(scores).logprobs[-predicted:] for _, predicted in parts]
                results.append(float(sum(np.sum(array, dtype=np.float64) for array in logprobs)))
                self.cache_hook.add_partial("loglikelihood_rolling", request.args, results[-1])
        return results

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the text of each continuation, without its stop string."""
        results: list[str] = []
        show, lanes = False if disable_tqdm else None, self.lm.engine.lanes
        with counting_progress(show, "generating", len(requests), above=lanes) as completed:
            for window in _windows(requests):
                for request, text in zip(window, self._generate(window), strict=True):
                    results.append(text)
                    self.cache_hook.add_partial("generate_until", request.args, text)
                completed(len(results))
        return results

    def _generate(self, requests: Sequence[Instance]) -> list[str]:
        texts: dict[int, str] = {}
        with self.lm.session() as session:
            for request in requests:
                arguments: Any = request.args
                settings = generation_settings(arguments[1], MAX_GEN_TOKS, self.eot_token_id)
                session.submit(self._prompt(arguments[0], settings), seed=self._seed, **settings, **self._thinking)
            while session.busy:
                for event in session.step():
                    if (completion := event.completion) is not None:
                        texts[event.index] = (completion.answer if self._answers else completion.text) or ""
        return [texts[index] for index in range(len(requests))]

    def _prompt(self, context: str, settings: Mapping[str, Any]) -> list[int]:
        room = self.max_length - settings["max_tokens"]
        if room < 1:
            raise ValueError(
                f"max_gen_toks: a task asks for {settings['max_tokens']} tokens, the context holds {self.max_length} "
                "with the prompt; load with a larger context"
            )
        return self.tok_encode(context)[-room:]


def _windows(requests: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (requests[start : start + MAX_QUEUED] for start in range(0, len(requests), MAX_QUEUED))


register_model("hybridlm")(HybridLM)
