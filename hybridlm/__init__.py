"""hybridlm: hybrid language models in JAX, many sequences in one step. Users import this package only."""

from hybridlm._siblings import require_siblings

require_siblings()

import models
from hybridlm import checkpoint, demo
from hybridlm._engine import NumericalError
from hybridlm._load import load
from hybridlm._lm import LM
from hybridlm._results import Completion, Score

DISTRIBUTION = "hybridlm"

__version__ = "0.1.0"
