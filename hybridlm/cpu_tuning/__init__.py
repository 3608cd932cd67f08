"""Faster variants of matrix products on CPUs, chosen by measurement when a model is loaded with `tune=True`.

Everything here is measured on this machine and changes no number beyond rounding: the variant of each large matrix
product, weights read as packed uint32, and the numbers of lanes for which the int8 head (`hybridlm.sampling.int8_head`)
is used. Imports `models`, `ir_passes` and the small modules of `hybridlm` that know neither the engine nor a step; the
rest of `hybridlm` uses only `tune` and its result. Begin with `tuning`. The heuristics of XLA:CPU that the variants are
written for are in `models.ops.layout`.
"""

from hybridlm.cpu_tuning.tuning import Tuned, check_tune, tune

__all__ = ["Tuned", "check_tune", "tune"]
