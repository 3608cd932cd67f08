"""Grammars of completions: JSON schemas, regular expressions, choices and Lark, by llguidance.

Imports text. Begin with `structured_outputs`.
"""

from hybridlm.grammars.grammars import Grammars, GrammarSource, GrammarState
from hybridlm.grammars.masks import TokenSet, TokenState, token_masks
from hybridlm.grammars.structured_outputs import StructuredOutputs, compiler_version, grammar_text

__all__ = [
    "GrammarSource",
    "GrammarState",
    "Grammars",
    "StructuredOutputs",
    "TokenSet",
    "TokenState",
    "compiler_version",
    "grammar_text",
    "token_masks",
]
