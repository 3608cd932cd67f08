"""OpenAI Batch files: requests and responses as JSON lines."""
