"""The live view of a real run on a pseudo-terminal: what a person sees, and what is left behind."""

import os
import re
import signal
import threading

SLOW = ("--gap-ms", "150", "--answer-tokens", "4")  # the view looks twice a second


class Terminal:
    """A pseudo-terminal that reads along while a run writes to it."""

    def __init__(self):
        self._ours, self.theirs = os.openpty()
        self._parts: list[bytes] = []
        self._reader = threading.Thread(target=self._read)

    def begin(self) -> None:
        """Only the run holds the other end from now on."""
        os.close(self.theirs)
        self._reader.start()

    def text(self) -> str:
        """What was written so far."""
        return b"".join(self._parts).decode(errors="replace")

    def close(self) -> str:
        """Wait for the other end to be closed; return everything."""
        self._reader.join(30)
        os.close(self._ours)
        return self.text()

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self._ours, 65536)
            except OSError:  # how a pseudo-terminal says that its other end is closed
                return
            if not part:
                return
            self._parts.append(part)


def start(stage, terminal, **plan):
    process = stage.start("run", stage.plan(**plan), "--out", stage.out, quiet=False, stderr=terminal.theirs)
    terminal.begin()
    return process


def test_ctrl_c_leaves_the_terminal_clean(stage):
    """The view acknowledges it, is cleared, gives the cursor back, and the last words stand below."""
    terminal = Terminal()
    process = start(stage, terminal, baseline=SLOW, candidate=SLOW)
    stage.wait_until(lambda: "elapsed" in terminal.text() and stage.measured(), "the view", wait_s=120.0)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    text = terminal.close()
    assert process.returncode == 130
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0
    last_drawn, last_words = text.rfind("elapsed"), text.rfind("Stopped after")
    assert last_words > last_drawn > 0
    assert "\x1b[2K" in text[last_drawn:last_words]
    assert "Traceback" not in text
    stage.assert_no_orphans()


def test_on_a_narrow_terminal_no_line_is_wider_than_it(stage, monkeypatch):
    """At 40 columns the view gives columns up; every line that it writes fits."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "30")
    stage.write_items(2)
    terminal = Terminal()
    process = start(stage, terminal, baseline=SLOW, candidate=SLOW)
    process.communicate(timeout=120)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.close())
    drawn = [
        line for line in re.split(r"[\r\n]+", plain) if re.match(r"(Arm|baseline|candidate|Period) ", line)
    ]
    assert drawn
    assert max(map(len, drawn)) <= 39
