"""Hybrid language models in JAX: the only package that users import."""

# isort: off
from hybridlm.siblings import require_siblings

require_siblings()
# isort: on

import gc
from pathlib import Path

import models
from ir_passes.files.sources import note_sources

note_sources(Path(__file__).parent, Path(str(models.__file__)).parent)

_collecting = gc.isenabled()
gc.disable()  # imports make hundreds of thousands of live objects: walking them takes a tenth of the time
try:
    from hybridlm import compiler, demo, families
    from hybridlm.checkpoint import CheckpointError
    from hybridlm.decision_models.questions import Answer
    from hybridlm.devices.mesh import mesh
    from hybridlm.engine.config import EngineConfig
    from hybridlm.engine.memory import InsufficientMemory
    from hybridlm.engine.prefix import Prefix
    from hybridlm.engine.probe_settings import ProbeSettings
    from hybridlm.errors import GrammarError, MissingExtra, NumericalError
    from hybridlm.forward import ForwardOutput, SequenceState
    from hybridlm.grammars import StructuredOutputs
    from hybridlm.lm import LM
    from hybridlm.loading import load
    from hybridlm.openai_batch.batch_task import BatchTask
    from hybridlm.requests.captured import Captured
    from hybridlm.requests.interventions import Intervention
    from hybridlm.requests.results import Completion, Score, TokenLogprobs
    from hybridlm.requests.sampling_params import SamplingParams
    from hybridlm.rows.pool import RowsLost
    from hybridlm.rows.snapshot import Snapshot, SnapshotError
    from hybridlm.score_files.divergence_task import DivergenceTask
    from hybridlm.score_files.options import FileOptions
    from hybridlm.score_files.score_task import ScoreTask
    from hybridlm.score_files.text_tasks import ClassifyTask, DecideTask, EmbedTask
    from hybridlm.scoring.choice import Choice
    from hybridlm.scoring.distributions import DistributionSettings
    from hybridlm.scoring.divergence import Divergence
    from hybridlm.scoring.pooling import Classification
    from hybridlm.session import Event, Session
    from hybridlm.tables import to_table, token_logprobs
    from hybridlm.version import __version__
    from ir_passes.files.loaded_code import note_code
    from models import ConfigError, FamilyError, UnsupportedModel, register_family
finally:
    if _collecting:
        gc.enable()

note_code("hybridlm", "models", "ir_passes")


def __dir__() -> list[str]:
    return [*__all__, "__doc__", "__file__"]


DISTRIBUTION = "hybridlm"

__all__ = [
    "DISTRIBUTION",
    "LM",
    "Answer",
    "BatchTask",
    "CheckpointError",
    "Captured",
    "Choice",
    "Classification",
    "ClassifyTask",
    "Completion",
    "ConfigError",
    "DecideTask",
    "DistributionSettings",
    "Divergence",
    "DivergenceTask",
    "EmbedTask",
    "EngineConfig",
    "Event",
    "FamilyError",
    "FileOptions",
    "ForwardOutput",
    "GrammarError",
    "InsufficientMemory",
    "Intervention",
    "MissingExtra",
    "NumericalError",
    "Prefix",
    "ProbeSettings",
    "RowsLost",
    "SamplingParams",
    "Score",
    "ScoreTask",
    "SequenceState",
    "Session",
    "Snapshot",
    "SnapshotError",
    "StructuredOutputs",
    "TokenLogprobs",
    "UnsupportedModel",
    "__version__",
    "compiler",
    "demo",
    "families",
    "load",
    "mesh",
    "models",
    "register_family",
    "to_table",
    "token_logprobs",
]
