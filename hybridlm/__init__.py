"""hybridlm: hybrid language models in JAX, many sequences in one step. Users import this package only."""

from hybridlm._siblings import require_siblings

require_siblings()

DISTRIBUTION = "hybridlm"

__version__ = "0.1.0"
