"""Models as the engine runs them: taken apart where their shape is known, over a ragged batch and cache."""
