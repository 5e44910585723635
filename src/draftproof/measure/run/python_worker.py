"""The process in which a function of the user's judges answers, one line of JSON in, one out.

Run as a script: `python_worker.py FOLDER FILE.py:NAME`. The first line in asks for the function to be loaded,
the first line out tells the hash of its code, or why it cannot be. What the function prints goes to the error
stream and is never taken for a verdict. Every line out repeats the number that was drawn for the line in, so
that what the function itself writes to the descriptor of the replies cannot pass for a later reply.
"""

import hashlib
import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from draftproof.workload.checks import JudgingView

Function = Callable[[JudgingView], Any]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One line in: the number that its reply repeats, and the answer; without one the function is loaded."""

    nonce: str
    view: JudgingView | None = None


def main(folder: str, name: str) -> int:
    """Judge line after line until the input ends."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # what a function prints must not be its end
    lines = iter(sys.stdin.buffer)
    nonce = msgspec.json.decode(next(lines), type=Asked).nonce
    try:
        function, sha256 = load_function(Path(folder), name)
    except Exception as error:  # noqa: BLE001 - foreign code may raise anything while it is loaded
        _write(out, {"nonce": nonce, "error": f"{type(error).__name__}: {error}"})
        return 1
    _write(out, {"nonce": nonce, "sha256": sha256})
    own = os.getpid()
    for line in lines:
        asked = msgspec.json.decode(line, type=Asked)
        passed, detail = judge(function, asked.view or JudgingView())
        if os.getpid() != own:
            # A function that forked comes back twice; a second answer would be taken for the next one's.
            os._exit(0)
        _write(out, {"nonce": asked.nonce, "passed": passed, "detail": detail})
    return 0


def load_function(folder: Path, name: str) -> tuple[Function, str]:
    """Return the function and the hash of the file it stands in.

    Raises Exception: whatever the code raises; ImportError, OSError or AttributeError where it is not there.
    """
    where, _, attribute = name.rpartition(":")
    sys.path.insert(0, str(folder))
    if where.endswith(".py"):
        path = folder / where
        spec = importlib.util.spec_from_file_location(path.stem, path)
    else:
        spec = importlib.util.find_spec(where)
    if spec is None or spec.loader is None or spec.origin is None:
        raise ImportError(f"there is no module {where}")
    code = Path(spec.origin).read_bytes()
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function: Function = getattr(module, attribute)
    return function, hashlib.sha256(code).hexdigest()


def judge(function: Function, view: JudgingView) -> tuple[bool | None, str]:
    """Return what the function says; None where it raises or returns anything but a bool (and a sentence)."""
    try:
        said = function(view)
    except Exception as error:  # noqa: BLE001 - foreign code may raise anything
        return None, f"raised {type(error).__name__}: {error}"[:200]
    passed, detail = said if isinstance(said, tuple) and len(said) == 2 else (said, "")
    if not isinstance(passed, bool):
        return None, f"returned {type(said).__name__}, not a bool or a bool and a sentence"
    return passed, str(detail)[:200] or ("passed" if passed else "not passed")


def _write(out: BinaryIO | Any, message: dict[str, Any]) -> None:
    out.write(msgspec.json.encode(message) + b"\n")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
