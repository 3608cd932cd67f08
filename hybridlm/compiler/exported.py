"""Compiled steps as files: StableHLO or XLA's executable, with the certificate."""

from ir_passes.compile.exported import Exported, ExportError, load_exported
from ir_passes.files.record import RecordError

__all__ = ["ExportError", "Exported", "RecordError", "load_exported"]
