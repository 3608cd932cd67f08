"""Scores of whole files, JSON lines or Parquet, window by window: a run that was killed continues.

Imports requests, files and errors; what scores a row is passed in. Begin with `score_file`; `rows` has what formats
share, `parts` what an unfinished run leaves.
"""
