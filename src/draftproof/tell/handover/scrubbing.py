"""The last look before a package leaves the house: is there a text in it that looks like a secret?

Journals and manifests are masked when they are written. What is found here is refused by file and line, never
quoted. Patterns are those of common keys; they are a net with meshes, and the documentation says so.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from draftproof.core.errors import StoreError, UsageError
from draftproof.services.engines.commands import MASK

_SHOWN = 5
# A mask or a reference to the environment is what a secret is replaced by.
_REPLACED = re.compile(re.escape(MASK.encode()) + rb"|\$\{\w+\}")
_SHORTEST_REST = 3
# What manuals write in a key's place, and the words of prose that follow an option's name.
_PLACEHOLDER = re.compile(
    rb"[A-Z][A-Z_\-]*|(?i:x+|none|null|empty|dummy|(?:your|my|some|the|a|an|example)(?:[_-].*)?|yourtoken|yourkey)"
    rb"|(?:and|are|argument|as|before|by|can|com[a-z]*|field|file|flag|for|from|has|header|if|in|instead|is|it|may|must"
    rb"|needs?|not|only|option|or|parameter|requires?|required|set|setting|should|so|switch|that|then|to|unless"
    rb"|unset|used|value|when|where|which|will|with|without|you)"
)
_KINDS: tuple[tuple[str, bytes], ...] = (
    ("a private key", rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----"),
    ("a bearer token", rb"(?i:\bbearer)[ +][A-Za-z0-9._~+/\-]{12,}"),
    (
        "an authorization header",
        (
            rb"(?i:\b(?:proxy-)?authorization|x-api-key|api-key)\\?[\"']?\s*[:=]\s*\\?[\"']?"
            rb"(?i:bearer |basic |token )?[A-Za-z0-9._~+/\-]{12,}"
        ),
    ),
    ("an API key", rb"\bsk-(?=[A-Za-z_\-]*[0-9])[A-Za-z0-9_\-]{16,}"),
    ("an API key", rb"\b(?:nvapi-|gsk_|npm_|r8_|sk_live_|rk_live_)[A-Za-z0-9_\-]{20,}"),
    (
        "a key given by name",
        (
            rb"(?i:api[_-]?key|subscription-key|secret[_-]?(?:access[_-]?)?key|(?:access|auth)[_-]?token|passw(?:or)?d)"
            rb"\\?[\"']?(?:\s*[:=]\s*|[\"']?,?\s+)\\?[\"']?(?=[A-Za-z._~+/\-]*[0-9])[A-Za-z0-9._~+/\-]{12,}"
        ),
    ),
    ("a Hugging Face token", rb"\bhf_[A-Za-z0-9]{16,}"),
    ("a GitHub token", rb"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})"),
    ("a GitLab token", rb"\bglpat-[A-Za-z0-9_\-]{16,}"),
    ("a Slack token", rb"\bxox[abeprs]-[A-Za-z0-9\-]{10,}"),
    ("an AWS key id", rb"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    ("a Google API key", rb"\bAIza[A-Za-z0-9_\-]{30,}"),
    ("a JSON web token", rb"\beyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]+"),
    (
        "a password in an address",
        rb"\b[a-z][a-z0-9+.\-]{1,20}://[^\s/:@\"'\\]*:(?!\d+[/\"'])(?P<value>[^\s/@\"'\\]+)@",
    ),
    (
        "a key in a command",
        (
            rb"(?i:--(?:[a-z]+[_-])*(?:api[_-]?key|(?:access|auth|bearer|hf|api)[_-]token|token|secret|passw(?:or)?d))"
            rb"(?:(?:=|\s+)\\?[\"']?|\\?[\"']\s*,\s*\\?[\"'])(?P<value>[A-Za-z0-9][A-Za-z0-9._~+/=\-]{2,})"
        ),
    ),
    (
        "a key in an address",
        (
            rb"(?:[?&]|&amp;|\\u0026)(?i:(?:[a-z]+[_-])*(?:key|token|secret|sig(?:nature)?|passw(?:or)?d|auth))="
            rb"(?P<value>(?=[A-Za-z._~+/%\-]*[0-9]|[^\s&\"'\\]{8})[A-Za-z0-9._~+/%\-]{6,})"
        ),
    ),
    (
        "a cookie",
        (
            rb"(?i:(?<![.\w])(?:set-)?cookie)\\?[\"']?\s*[:=,]\s*\\?[\"']?(?:[^\s=;\"'\\]+=[^;\"'\\\n]*;\s*)*?"
            rb"(?!(?i:max-age|expires|path|domain)=)[^\s=;\"'\\]+=(?P<value>[A-Za-z0-9._~+/%\-]{8,})"
        ),
    ),
    (
        "a Slack webhook",
        (
            rb"\bhooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/"
            rb"[A-Za-z0-9]+/[A-Za-z0-9]+/(?P<value>[A-Za-z0-9]{8,})"
        ),
    ),
)
_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _KINDS)


class SecretPlace(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Where something looks like a secret: the member, its line from 1, and what it looks like."""

    member: str
    line: int
    kind: str

    @property
    def place(self) -> str:
        """Member and line, as `--allow-secret-like` takes it."""
        return f"{self.member}:{self.line}"


def find_secret_places(members: Mapping[str, Path], values: Collection[str] = ()) -> tuple[SecretPlace, ...]:
    """Return every place of some files that looks like a secret.

    Raises StoreError: a file cannot be read. `values` are secrets that are known, such as those the plan
    refers to in the environment.
    """
    known = _known_patterns(values)
    return tuple(place for name, path in sorted(members.items()) for place in _search_file(name, path, known))


def refuse_secrets(places: Collection[SecretPlace], allowed: Collection[str]) -> None:
    """Do nothing if every place was allowed by name.

    Raises UsageError: names the first places, or an allowed place at which nothing was found.
    """
    left = sorted(one for one in places if one.place not in allowed)
    if left:
        shown = ", ".join(f"{one.kind} at {one.place}" for one in left[:_SHOWN])
        more = f", and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        raise UsageError(
            f"the package would hold what looks like a secret: {shown}{more}.",
            fix="measure again with the secret in the environment, use --withhold, or, where it is none, add "
            f"--allow-secret-like {left[0].place}",
        )
    unused = sorted(set(allowed) - {one.place for one in places})
    if unused:
        raise UsageError(
            f"nothing at {unused[0]} looks like a secret.", place="--allow-secret-like", fix="leave it away."
        )


def _known_patterns(values: Collection[str]) -> tuple[tuple[str, re.Pattern[bytes]], ...]:
    """A value stands in a document as it is, or as JSON writes it."""
    forms = {form for value in values for form in (value.encode(), msgspec.json.encode(value)[1:-1])}
    return tuple(("the value of a secret of the plan", re.compile(re.escape(form))) for form in sorted(forms))


def _search_file(
    name: str, path: Path, known: tuple[tuple[str, re.Pattern[bytes]], ...]
) -> Iterator[SecretPlace]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                kind = _classify(line, known)
                if kind is not None:
                    yield SecretPlace(member=name, line=number, kind=kind)
    except OSError as error:
        raise StoreError(f"cannot be read ({error.strerror}).", place=str(path)) from error


def _classify(line: bytes, known: tuple[tuple[str, re.Pattern[bytes]], ...]) -> str | None:
    for kind, pattern in known:
        if pattern.search(line):
            return kind
    for kind, pattern in _PATTERNS:
        for found in pattern.finditer(line):
            if _may_be_secret(found):
                return kind
    return None


def _may_be_secret(found: re.Match[bytes]) -> bool:
    """Tell whether more is left of what was found than masks, references and placeholders."""
    value = found.groupdict().get("value")
    if value is None:
        return True
    rest = _REPLACED.sub(b"", value)
    return len(rest) >= _SHORTEST_REST and not _PLACEHOLDER.fullmatch(value.rstrip(b".,"))
