"""Files: atomic output files, JSON lines, and strict JSON and text files."""
