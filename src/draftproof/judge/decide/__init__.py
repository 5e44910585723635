"""All that may change a verdict."""
