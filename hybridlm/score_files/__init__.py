"""Tasks on the rows of files, part by part: a killed run continues.

Formats are JSON lines, CSV, Parquet, lines of text, and gzip.
"""
