"""Scoring: log-probabilities and distributions of texts, divergence, embeddings, choice and perplexity."""
