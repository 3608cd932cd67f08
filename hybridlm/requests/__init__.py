"""Requests and results: input validation, active sequences, completions and scores."""
