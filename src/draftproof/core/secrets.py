"""What looks like a secret: by the name of a flag, a field or a header, or by the text itself. Pure.

Patterns are those of common keys; they are a net with meshes, and the documentation says so.
"""

import re
from collections.abc import Iterable

MASK = "***"
_SECRET = re.compile(
    r"api_?key|secret|passw|pass(phrase)?$|credential|^token$|^key$|(hf|auth|access|bearer|api)_?token|^hft$|_pat$|dsn$",
    re.IGNORECASE,
)
_SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie|passw|credential", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Tell whether a flag or a variable of this name holds a key or a password."""
    return bool(_SECRET.search(name.replace("-", "_")))


def is_secret_header(name: str) -> bool:
    """Tell whether a request header of this name holds a key, a password or a session."""
    return bool(_SECRET_HEADER.search(name))


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
# What it looks like, what it cannot lack in small letters (a line without is not searched), the pattern.
_KINDS: tuple[tuple[str, tuple[bytes, ...], bytes], ...] = (
    ("a private key", (b"private key-----",), rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----"),
    ("a bearer token", (b"bearer",), rb"(?i:\bbearer)[ +][A-Za-z0-9._~+/\-]{12,}"),
    (
        "an authorization header",
        (b"authorization", b"api-key"),
        (
            rb"(?i:\b(?:proxy-)?authorization|x-api-key|api-key)\\?[\"']?\s*[:=]\s*\\?[\"']?"
            rb"(?i:bearer |basic |token )?[A-Za-z0-9._~+/\-]{12,}"
        ),
    ),
    ("an API key", (b"sk-",), rb"\bsk-(?=[A-Za-z_\-]{0,200}[0-9])[A-Za-z0-9_\-]{16,}"),
    (
        "an API key",
        (b"nvapi-", b"gsk_", b"npm_", b"r8_", b"k_live_"),
        rb"\b(?:nvapi-|gsk_|npm_|r8_|sk_live_|rk_live_)[A-Za-z0-9_\-]{20,}",
    ),
    (
        "a key given by name",
        (b"key", b"token", b"passw"),
        (
            rb"(?i:api[_-]?key|subscription-key|secret[_-]?(?:access[_-]?)?key|(?:access|auth)[_-]?token|passw(?:or)?d)"
            rb"\\?[\"']?(?:\s*[:=]\s*|[\"']?,?\s+)\\?[\"']?(?=[A-Za-z._~+/\-]*[0-9])[A-Za-z0-9._~+/\-]{12,}"
        ),
    ),
    ("a Hugging Face token", (b"hf_",), rb"\bhf_[A-Za-z0-9]{16,}"),
    (
        "a GitHub token",
        (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_"),
        rb"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})",
    ),
    ("a GitLab token", (b"glpat-",), rb"\bglpat-[A-Za-z0-9_\-]{16,}"),
    ("a Slack token", (b"xox",), rb"\bxox[abeprs]-[A-Za-z0-9\-]{10,}"),
    ("an AWS key id", (b"akia", b"asia"), rb"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    ("a Google API key", (b"aiza",), rb"\bAIza[A-Za-z0-9_\-]{30,}"),
    ("a JSON web token", (b"eyj",), rb"\beyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]+"),
    (
        "a password in an address",
        (b"://",),
        rb"\b[a-z][a-z0-9+.\-]{1,20}://[^\s/:@\"'\\]*:(?!\d+[/\"'])(?P<value>[^\s/@\"'\\]+)@",
    ),
    (
        "a key in a command",
        (b"--",),
        (
            rb"(?i:--(?:[a-z]+[_-])*(?:api[_-]?key|(?:access|auth|bearer|hf|api)[_-]token|token|secret|passw(?:or)?d))"
            rb"(?:(?:=|\s+)\\?[\"']?|\\?[\"']\s*,\s*\\?[\"'])(?P<value>[A-Za-z0-9][A-Za-z0-9._~+/=\-]{2,})"
        ),
    ),
    (
        "a key in an address",
        (b"key=", b"token=", b"secret=", b"sig=", b"signature=", b"passwd=", b"password=", b"auth="),
        (
            rb"(?:[?&]|&amp;|\\u0026)(?i:(?:[a-z]+[_-])*(?:key|token|secret|sig(?:nature)?|passw(?:or)?d|auth))="
            rb"(?P<value>(?=[A-Za-z._~+/%\-]*[0-9]|[^\s&\"'\\]{8})[A-Za-z0-9._~+/%\-]{6,})"
        ),
    ),
    (
        "a cookie",
        (b"cookie",),
        (
            rb"(?i:(?<![.\w])(?:set-)?cookie)\\?[\"']?\s*[:=,]\s*\\?[\"']?(?:[^\s=;\"'\\]+=[^;\"'\\\n]*;\s*)*?"
            rb"(?!(?i:max-age|expires|path|domain)=)[^\s=;\"'\\]+=(?P<value>[A-Za-z0-9._~+/%\-]{8,})"
        ),
    ),
    (
        "a Slack webhook",
        (b"hooks.slack",),
        (
            rb"\bhooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/"
            rb"[A-Za-z0-9]+/[A-Za-z0-9]+/(?P<value>[A-Za-z0-9]{8,})"
        ),
    ),
)
_PATTERNS = tuple((kind, re.compile(pattern)) for kind, _, pattern in _KINDS)
# One list, gone through once for each of the many lines of a run that hold no hint.
_HINTS = tuple((hint, index) for index, (_, hints, _) in enumerate(_KINDS) for hint in hints)


def classify_secret(line: bytes, known: Iterable[tuple[str, re.Pattern[bytes]]] = ()) -> str | None:
    """Return what a line seems to hold, such as "a bearer token"; None for nothing.

    `known`: kinds with patterns of secrets that are known; they are looked for first.
    """
    for kind, pattern in known:
        if pattern.search(line):
            return kind
    lowered = line.lower()
    for index in sorted({index for hint, index in _HINTS if hint in lowered}):
        kind, pattern = _PATTERNS[index]
        if any(map(_may_be_secret, pattern.finditer(line))):
            return kind
    return None


def _may_be_secret(found: re.Match[bytes]) -> bool:
    """Tell whether more is left of what was found than masks, references and placeholders."""
    value = found.groupdict().get("value")
    if value is None:
        return True
    rest = _REPLACED.sub(b"", value)
    return len(rest) >= _SHORTEST_REST and not _PLACEHOLDER.fullmatch(value.rstrip(b".,"))
