"""Foreign text on a terminal: what a package or a service says must not steer it."""

import re

# C0 and C1 controls but for line ends and tabs, and the marks that turn the direction of writing.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def make_printable(text: str) -> str:
    """Return a text with every character that steers a terminal written as an escape."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
