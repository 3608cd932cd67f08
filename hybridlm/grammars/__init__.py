"""Grammars of completions: JSON schemas, regular expressions, choices and Lark, by llguidance."""

from hybridlm.grammars.grammars import Grammars, GrammarState, TokenSet, TokenState, token_masks
from hybridlm.grammars.structured_outputs import StructuredOutputs, compiler_version, grammar_text
