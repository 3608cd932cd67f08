"""Linear recurrences over tokens: the delta rule and SSD, token by token and in chunks (chunkwise); with their kernels.

Imports the rest of `ops`. Begin with `recurrence`, `delta_rule` and `ssd`; `recurrent_step`, `recurrent_step_tpu`,
`recurrent_step_cpu`, `chunk_scan`, `conv_step` and `conv_step_cpu` are kernels for GPUs, TPUs and CPUs.
"""
