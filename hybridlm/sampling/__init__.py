"""Sampling: the next token of every lane from its logits.

Begin with `sampling`.
"""

from hybridlm.sampling.sampling import BESIDE_GREEDY, FILTERED, GREEDY, SAMPLED, Sampling, sample_tokens
from hybridlm.sampling.vocab_parallel import Vocabulary
