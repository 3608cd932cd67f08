"""hybridlm: hybrid language models in JAX, many sequences in one step. Users import this package only."""

# isort: off
from hybridlm._siblings import require_siblings

require_siblings()
# isort: on

import ir_passes as compiler
import models
from hybridlm import demo
from hybridlm._choice import Choice
from hybridlm._errors import MissingExtra, NumericalError
from hybridlm._forward import ForwardOutput, SequenceState
from hybridlm._lm import LM
from hybridlm._load import load
from hybridlm._memory import InsufficientMemory
from hybridlm._mesh import mesh
from hybridlm._prefix import Prefix
from hybridlm._results import Completion, Score
from hybridlm._rows import RowsLost
from hybridlm._sampling_params import SamplingParams
from hybridlm._session import Event, Session
from hybridlm._snapshot import Snapshot, SnapshotError
from hybridlm._tables import to_table
from hybridlm.checkpoint import CheckpointError
from models import ConfigError, UnsupportedModel

DISTRIBUTION = "hybridlm"

__version__ = "0.1.0"

__all__ = [
    "DISTRIBUTION",
    "LM",
    "CheckpointError",
    "Choice",
    "Completion",
    "ConfigError",
    "Event",
    "ForwardOutput",
    "InsufficientMemory",
    "MissingExtra",
    "NumericalError",
    "Prefix",
    "RowsLost",
    "SamplingParams",
    "Score",
    "SequenceState",
    "Session",
    "Snapshot",
    "SnapshotError",
    "UnsupportedModel",
    "__version__",
    "compiler",
    "demo",
    "load",
    "mesh",
    "models",
    "to_table",
]
