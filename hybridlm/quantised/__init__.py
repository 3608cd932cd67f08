"""Quantised checkpoints: the tensors of a weight, and the exact values of its codes.

Begin with `groups`.
"""

from hybridlm.quantised.contradictions import contradictions
from hybridlm.quantised.formulas import dequantise
from hybridlm.quantised.groups import GroupedTensors, group_tensors
from hybridlm.quantised.packed import PackedForm
from hybridlm.quantised.schemes import SCHEMES, DequantiseError, QuantisedTensor
from hybridlm.quantised.settings import QuantisationSettings, read_settings
from hybridlm.quantised.shapes import Hints, TensorInfo
