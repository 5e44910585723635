"""Text to a terminal, a pipe or a log, in whatever encoding it has. All output of the commands passes here.

What a package or a service says must not steer a terminal, and a character that an encoding lacks must not
end a finished run: text gets a replacement character, JSON an escape, so that it stays JSON.
"""

import codecs
import io
import os
import re
import sys
from typing import TextIO

import msgspec

# C0 and C1 controls but for line ends and tabs, and the marks that turn the direction of writing.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def make_printable(text: str) -> str:
    """Return a text with every character that steers a terminal written as an escape."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def replace_unencodable() -> None:
    """Let standard output and error write a replacement for each character that their encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def print_text(text: str) -> None:
    """Write a text and a line end to standard output."""
    _print(make_printable(text))


def print_json(value: object) -> None:
    """Write a value as JSON to standard output; JSON is UTF-8, so another encoding gets ASCII escapes."""
    text = msgspec.json.format(msgspec.json.encode(value, enc_hook=str)).decode()
    escaped = _STEERING if _is_utf8(sys.stdout) else _NOT_ASCII
    _print(escaped.sub(_escape, text))


def _is_utf8(stream: TextIO | None) -> bool:
    return codecs.lookup(getattr(stream, "encoding", None) or "utf-8").name == "utf-8"


def _escape(found: re.Match[str]) -> str:
    """JSON names a character by its UTF-16 units."""
    units = found[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def _print(text: str) -> None:
    """A reader that has gone must not change what a command exits with."""
    if sys.stdout is None:  # closed by who started the command
        return
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
