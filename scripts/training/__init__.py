"""Training of small drafters: they learn from the target's answers to the project's own prompts."""
