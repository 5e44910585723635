"""What the services say of themselves, beside what the client saw."""
