"""The map of the house holds: every path it names exists, and every room is on it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "draftproof"


def test_every_path_exists():
    """A path in backticks is a file or a folder below the package."""
    paths = re.findall(r"`([a-z_]+(?:/[a-z_0-9]+)*(?:/|\.py))`", PAGE)
    assert len(paths) > 50
    assert [path for path in paths if not (SOURCE / path).exists() and not (ROOT / path).exists()] == []


def test_every_room_is_named():
    """The table of rooms names each folder at the top, and there are twelve at most."""
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert rooms == set(re.findall(r"^\| `([a-z]+)/` \|", PAGE, re.MULTILINE))
    assert len(rooms) <= 12
