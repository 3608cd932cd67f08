"""Scoring: log-probabilities and distributions of texts, divergence, embeddings, choice and perplexity.

Imports the engine, prefix cache, programs, steps, requests, rows and text. Begin with `scorer`.
"""
