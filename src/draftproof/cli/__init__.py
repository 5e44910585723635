"""The command line: parses, calls the library, prints, turns errors into a sentence and an exit code."""

from draftproof.cli.app import main

__all__ = ["main"]
