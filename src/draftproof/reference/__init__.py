"""The reference engine: speculative decoding that can be read, trusted and timed.

A leaf: only the command line imports it, lazily, and it needs the extra `engine`.
"""
