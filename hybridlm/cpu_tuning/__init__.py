"""Faster variants of matrix products on CPUs, chosen by measurement when a model is loaded with `tune=True`.

What lives here is measured on this machine and changes no number beyond rounding: the variants of the product of each
large matrix, weights read as packed 32-bit words, and for how many lanes the int8 head (`hybridlm.sampling.int8_head`)
is used. It imports `models`, `ir_passes` and the small modules of `hybridlm` that know no engine, and no step; of it
the rest of `hybridlm` sees `tune` and what it returns. Begin with `tuning`.
"""

from hybridlm.cpu_tuning.tuning import Tuned, check_tune, tune

__all__ = ["Tuned", "check_tune", "tune"]
