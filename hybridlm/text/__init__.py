"""Text: tokenizer, chat template, and incremental text with stop strings."""

from hybridlm.text.chat_template import ChatTemplateError
from hybridlm.text.tokenizer import Tokenizer
