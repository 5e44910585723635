"""The four families of drafters: n-gram lookup, draft model, attached head, self-speculation."""
