"""The HTML page: self-contained, accessible, safe, and the same bytes each time."""

import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from importlib.resources import files

import msgspec
import pytest
from tests.builders.manifest import build_manifest
from tests.builders.results import build_results

from draftproof.tell.report import render_full, render_html

_VOID = {"meta", "br", "rect", "line", "circle", "path", "use", "link", "img"}
_EVIL = "\"><script>alert(1)</script>'"


class Outline(HTMLParser):
    """Collects unbalanced tags, headings, ids, table headers, and text."""

    def __init__(self):
        super().__init__()
        self.open, self.faults, self.headings, self.ids, self.links, self.bare_headers, self.text = (
            [] for _ in range(7)
        )

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        if tag not in _VOID:
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if "id" in named:
            self.ids.append(named["id"])
        if named.get("href", "").startswith("#"):
            self.links.append(named["href"][1:])
        if tag == "th" and "scope" not in named:
            self.bare_headers.append(named)

    def handle_endtag(self, tag):
        if tag not in _VOID and (not self.open or self.open.pop() != tag):
            self.faults.append(tag)

    def handle_data(self, data):
        self.text.append(data)


def outline(page):
    parser = Outline()
    parser.feed(page)
    parser.close()
    return parser


SIZES = {
    "one cell": build_results(segments=1, loads=1),
    "usual": build_results(),
    "many": build_results(segments=25, loads=5),
    "all failed": build_results(failing=True),
}


@cache
def outline_of(size):
    return outline(render_html(SIZES[size], build_manifest()))


@pytest.mark.parametrize("size", SIZES)
def test_the_page_is_well_formed_and_its_links_lead_somewhere(size):
    """Tags balance, ids are unique, and every inner link has its target, at any size."""
    page = outline_of(size)
    assert (page.faults, page.open) == ([], [])
    assert len(page.ids) == len(set(page.ids))
    assert set(page.links) <= set(page.ids)


@pytest.mark.parametrize("size", SIZES)
def test_headings_descend_without_gaps_and_headers_have_a_scope(size):
    """One h1, no level skipped downwards, and a scope on every table header."""
    page = outline_of(size)
    assert page.headings.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(page.headings, page.headings[1:], strict=False))
    assert page.bare_headers == []


def test_the_page_needs_no_network_and_no_script():
    """Nothing is loaded and nothing runs."""
    page = render_html(build_results(), build_manifest())
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    assert not re.search(r"<script|@import|url\(|<link|<iframe", page)


def test_strings_from_outside_are_escaped():
    """A hostile name cannot leave its place, wherever it stands."""
    results = _poison(build_results(segments=2, loads=1, name=_EVIL))
    page = render_html(results, _poison_manifest())
    assert "<script" not in page
    assert outline(page).faults == []
    assert page.count("&lt;script&gt;") > 10


@pytest.mark.parametrize("evil", ["\x00", "\x1b[31m", "\x9b31m", "\u202e", "\ud800"])
def test_the_page_holds_no_control_characters(evil):
    """Control characters, marks that turn the text around and halves of pairs are shown by a stand-in."""
    results = msgspec.structs.replace(build_results(), question=f"a{evil}b", draftproof_version=evil)
    page = render_html(results)
    assert evil not in page
    assert "a\N{REPLACEMENT CHARACTER}" in page
    assert evil not in render_full(results)
    page.encode()


def _poison(results):
    cells = tuple(
        msgspec.structs.replace(
            cell,
            segment=_EVIL,
            reasons=tuple(msgspec.structs.replace(r, text=_EVIL, evidence=_EVIL) for r in cell.reasons),
        )
        for cell in results.cells
    )
    return msgspec.structs.replace(
        results,
        cells=cells[:1],
        question=_EVIL,
        plan_sha256=_EVIL,
        warnings=(_EVIL,),
        not_measured=(_EVIL,),
        segments=(_EVIL,),
        estimators=tuple(
            msgspec.structs.replace(e, estimator=_EVIL, used_by=_EVIL) for e in results.estimators
        ),
        effects=tuple(msgspec.structs.replace(e, segment=_EVIL, metric=_EVIL) for e in results.effects[:1]),
        arm_cells=tuple(
            msgspec.structs.replace(c, arm=_EVIL, segment=_EVIL, outcomes={_EVIL: 1})
            for c in results.arm_cells[:1]
        ),
        verdict=msgspec.structs.replace(results.verdict, sentence=_EVIL, evidence_level=_EVIL),
    )


def _poison_manifest():
    manifest = build_manifest(name=_EVIL)
    arms = tuple(
        msgspec.structs.replace(arm, engine=_EVIL, url=_EVIL, settings={_EVIL: _EVIL})
        for arm in manifest.arms
    )
    return msgspec.structs.replace(manifest, arms=arms, host={_EVIL: _EVIL})


@pytest.mark.parametrize(
    "claim",
    [
        "pilot hypothesis",
        "What decides",
        "Why each cell has its status",
        "Safe?",
        "Speculation may run",
        "Mean acceptance length (conditional)",
        "Per decode step (unconditional)",
        "Committed progress",
        "What other estimators give for this run",
        "Output equivalence",
        "Checks of answers",
        "Failures and outcomes",
        "Diagnosis",
        "What was not measured",
        "Arms side by side",
        "draftproof report RUN",
    ],
)
def test_every_section_is_on_the_page(claim):
    """The page has all its parts."""
    text = " ".join(outline_of("usual").text)
    assert claim in text


def test_a_run_in_which_everything_failed_shows_no_made_up_number():
    """Percentiles, ratios and shares of nothing are dashes with a reason."""
    page = render_html(build_results(failing=True))
    assert "falls on a failed request: infinite" in page
    assert "6 more needed" in page
    assert not re.search(r"[+−]?\d+(\.\d+)?%</span>", page)


def test_without_a_manifest_the_page_says_what_is_missing():
    """The configuration section names the file that holds it."""
    assert "manifest.json" in render_html(build_results())


def test_an_empty_run_still_renders():
    """No cells, arms, loads or effects: every section says that it has nothing."""
    empty = dict.fromkeys(
        ("arm_cells", "effects", "differences", "agreements", "estimators", "cells", "diagnosis"), ()
    )
    page = render_html(msgspec.structs.replace(build_results(), segments=(), loads=(), arms=(), **empty))
    assert outline(page).faults == []
    assert "The run has no cells." in page


def test_the_same_results_give_the_same_bytes_in_any_process():
    """Hash randomisation changes nothing."""
    program = (
        "import hashlib; from draftproof.tell.report import render_html, render_full;"
        "from tests.builders.results import build_results;"
        "from tests.builders.manifest import build_manifest;"
        "r = build_results(segments=3);"
        "print(hashlib.sha256((render_html(r, build_manifest()) + render_full(r)).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


_TEXT_ON_GROUND = [
    ("ink", "paper"),
    ("ink", "wash"),
    ("muted", "paper"),
    ("muted", "wash"),
    ("muted", "open-wash"),
    ("muted", "gain-wash"),
    ("muted", "harm-wash"),
    ("muted", "neutral-wash"),
    ("link", "paper"),
    ("link", "open-wash"),
    ("ink", "gain-wash"),
    ("ink", "harm-wash"),
    ("gain", "gain-wash"),
    ("harm", "harm-wash"),
    ("neutral", "neutral-wash"),
    ("open", "paper"),
    ("open", "open-wash"),
    ("harm", "paper"),
    ("bad", "paper"),
]


@pytest.mark.parametrize("theme", [0, 1, 2], ids=["light", "dark", "print"])
@pytest.mark.parametrize(("text", "ground"), _TEXT_ON_GROUND)
def test_text_meets_the_contrast_of_wcag_aa(theme, text, ground):
    """Text has at least 4.5:1 against its ground in light, dark and print."""
    colours = _palettes()[theme]
    lighter, darker = sorted((_luminance(colours[text]), _luminance(colours[ground])), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def _palettes():
    css = files("draftproof.tell.report").joinpath("templates/report.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", css, flags=re.DOTALL)
    return [dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", block)) for block in blocks]


def _luminance(colour):
    digits = colour[1:] if len(colour) == 7 else "".join(c * 2 for c in colour[1:])
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_commands_on_the_page_name_the_runs_folder():
    """As it was called when the run began; a run from before that was noted is RUN."""
    results, manifest = build_results(), build_manifest()
    named = render_html(results, msgspec.structs.replace(manifest, folder="night run"))
    assert "draftproof report &#39;night run&#39;" in named
    assert "RUN" not in "".join(re.findall(r"<code>[^<]*</code>", named))
    assert "draftproof report RUN" in render_html(results, manifest)
