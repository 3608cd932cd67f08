"""OpenAI Batch files: requests and responses as JSON lines. Begin with `batch_task`."""
