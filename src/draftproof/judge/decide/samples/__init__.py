"""How many prompts a question takes, before a run and after it."""
