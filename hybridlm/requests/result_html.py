"""Results in notebooks: tokens in a strip, coloured by their log-probability."""

import math
from collections.abc import Iterator, Sequence
from html import escape

from hybridlm.text.tokenizer import Tokenizer

MAX_TOKENS_SHOWN = 2000
"""Notebooks store every output."""
MAX_NLL = 12.0
"""Negative log-probability of the darkest colour: 6 in a million."""


def strip(
    token_ids: Sequence[int], logprobs: Sequence[float], greedy: Sequence[bool] | None, tokenizer: Tokenizer | None
) -> str:
    """Render tokens as HTML: redder if less likely, underlined if not the most likely."""
    sampled = token_ids[:MAX_TOKENS_SHOWN]
    cells = list(_cells(sampled, _shown(sampled, tokenizer), logprobs, greedy))
    left_out = len(token_ids) - len(cells)
    note = f"<p>{left_out:,} more tokens are left out.</p>" if left_out else ""
    key = "".join(f'<span style="{_cell_style(value)}">{value:g}</span>' for value in (0.0, -1.0, -3.0, -6.0, -12.0))
    underlined = "" if greedy is None else "; underlined: another token was likelier"
    style = "font:12px ui-monospace,monospace;line-height:1.9;white-space:pre-wrap"
    return (
        f'<div style="{style}">{"".join(cells)}</div>{note}'
        f'<div style="font-size:11px;margin-top:.4em">log-probability: {key}{underlined}</div>'
    )


def table(rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table>{cells}</table>"


def preformatted(text: str) -> str:
    return f'<pre style="white-space:pre-wrap">{escape(text)}</pre>'


def _shown(token_ids: Sequence[int], tokenizer: Tokenizer | None) -> list[str]:
    """Return each token's text: arrows for line ends, U+FFFD for partial characters."""
    if tokenizer is None:
        return [str(int(token)) for token in token_ids]
    texts = (tokenizer.decode([token], skip_special_tokens=False) for token in token_ids)
    return [escape(text).replace("\n", "&crarr;") for text in texts]


def _cells(
    token_ids: Sequence[int], texts: Sequence[str], logprobs: Sequence[float], greedy: Sequence[bool] | None
) -> Iterator[str]:
    for place, (token, text, logprob) in enumerate(zip(token_ids, texts, logprobs, strict=False)):
        unlikely = greedy is not None and not greedy[place] and not math.isnan(logprob)
        style = _cell_style(logprob) + (";text-decoration:underline" if unlikely else "")
        prediction = "nothing predicts it" if math.isnan(logprob) else f"{logprob:.3f}"
        yield f'<span style="{style}" title="token {place}: id {int(token)}, {prediction}">{text}</span>'


def _cell_style(logprob: float) -> str:
    shade = 0.0 if math.isnan(logprob) else min(max(-logprob, 0.0) / MAX_NLL, 1.0)
    border = "1px dashed" if math.isnan(logprob) else "1px solid"
    return (
        f"background:rgba(217,48,37,{0.75 * shade:.3f});border:{border} rgba(128,128,128,.4);padding:0 .25em;margin:1px"
    )
