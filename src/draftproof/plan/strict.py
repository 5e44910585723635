"""The base of every table of a plan, and the ranges that several tables share."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictFloat, StrictInt

# What a value is, is what was written: a text or a truth value is no number, and 5.0 is no count. A whole
# number is a number.
Number = StrictFloat
Whole = StrictInt
Flag = StrictBool

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,40}$")]
Ratio = Annotated[Number, Field(gt=0.0, lt=1.0)]
Share = Annotated[Number, Field(ge=0.0, le=1.0)]


def _accept_version(value: object) -> object:
    """Pass an integer on: true and 1.0 are equal to 1 and no version."""
    if type(value) is int:
        return value
    raise ValueError(f"a version is a whole number, got {value!r}")


Version = Annotated[Literal[1], BeforeValidator(_accept_version)]


class Strict(BaseModel):
    """A table in which an unknown key is an error and every default is checked like a written value."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)
