"""The OpenAI-compatible server around the engine: requests in, rounds out."""
