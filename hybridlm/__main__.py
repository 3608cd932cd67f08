"""`python -m hybridlm` is the console script."""

from hybridlm._cli import main

main()
