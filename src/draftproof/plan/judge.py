"""The table `[judge]` of a plan. A plan is copied into every run, so it may state no secret."""

import re
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from draftproof.engines.reading.flags import is_secret_header, is_secret_name
from draftproof.plan.strict import Number, Strict, Whole

Scalar = str | int | float | bool
_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")


class Judge(Strict):
    """A model that judges answers for checks of type judge, asked once after the run, blind to the arm."""

    url: str = Field(description="Base address of an OpenAI-compatible service, e.g. http://127.0.0.1:9000.")
    model: str = Field(description="Model name sent in requests.")
    headers: dict[str, str] = Field(
        default_factory=dict,
        description="Headers of every request; write a key as ${NAME}, it is taken from the environment and "
        "never stored.",
    )
    request: dict[str, Scalar] = Field(default_factory=dict, description="Further fields of every request.")
    max_tokens: Whole = Field(64, ge=1, description="Longest answer of the judge, tokens.")
    timeout_s: Number = Field(60.0, gt=0, description="Longest time of one request.")
    concurrency: Whole = Field(4, ge=1, le=256, description="Requests kept in flight.")

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            fits = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            fits = False
        # A value is not quoted: it may hold a password.
        if not fits or any(sign.isspace() for sign in url):
            raise ValueError("this is no address, write it as http://127.0.0.1:9000")
        unfit = [name for name in ("username", "password", "query", "fragment") if getattr(parts, name)]
        if unfit:
            raise ValueError(
                f"an address may hold no {unfit[0]}, because it is stored with the run; "
                "end it before that part and give a key in judge.headers"
            )
        return url

    @field_validator("headers")
    @classmethod
    def _headers_refer_to_secrets(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if is_secret_header(name) and not _REFERENCE.search(value):
                raise ValueError(
                    f"{name} states a secret, which would be copied into every run; "
                    f'export it and write {name} = "... ${{NAME}}"'
                )
        return headers

    @field_validator("request")
    @classmethod
    def _fields_hold_no_secret(cls, request: dict[str, Scalar]) -> dict[str, Scalar]:
        for name in request:
            if is_secret_name(name):
                raise ValueError(
                    f"{name} states a secret, which would be copied into every run; "
                    "send it as a header, taken from the environment"
                )
        return request
