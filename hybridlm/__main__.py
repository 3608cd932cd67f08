"""`python -m hybridlm` is the console script."""

from hybridlm.cli.main import main

main()
