"""Build the library of kernels for CPUs: `python -m models.cpu_kernels`."""

from models.cpu_kernels.build import main

main()
