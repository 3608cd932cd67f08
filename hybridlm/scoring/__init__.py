"""Scoring: log-probabilities and distributions of texts that exist, divergence, embeddings, choice and perplexity.

Imports the engine, prefix cache, programs, steps, requests, rows and text. Begin with `scorer`; `queue` orders texts so
that common prefixes are prefilled once.
"""
