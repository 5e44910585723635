"""The table `[judge]` of a plan."""

from pydantic import Field

from draftproof.plan.strict import Strict

Scalar = str | int | float | bool


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
    max_tokens: int = Field(64, ge=1, description="Longest answer of the judge, tokens.")
    timeout_s: float = Field(60.0, gt=0, description="Longest time of one request.")
    concurrency: int = Field(4, ge=1, le=256, description="Requests kept in flight.")
