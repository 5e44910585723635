"""What a value of a plan is, is what was written: no text and no truth value stands for a number."""

import pytest
from pydantic import ValidationError

from draftproof.core.errors import PlanError
from draftproof.plan.loading import parse_plan, thresholds_sha256
from draftproof.plan.schema import Plan
from draftproof.plan.tables import Strict

MINIMAL = """
name = "strict"
[[load]]
name = "l"
concurrency = 1
[arms.baseline]
[arms.candidate]
"""
OTHERS = {"integer": (True, "5", 5.0), "number": (True, "5"), "boolean": (1, "yes", 0.0)}


def list_tables(table=Strict):
    """Return every kind of table that a plan may have."""
    found = [one for one in table.__subclasses__() if one.__module__.startswith("draftproof.plan.")]
    return [*found, *(deeper for one in found for deeper in list_tables(one))]


def list_wrong(schema):
    """Return values of other types than those of a schema, wrapped as it wraps its own."""
    variants = schema.get("anyOf", [schema])
    names = {one.get("type") for one in variants}
    if "array" in names:
        return [[wrong] for one in variants for wrong in list_wrong(one.get("items", {}))]
    if "object" in names and isinstance(schema.get("additionalProperties"), dict):
        return [{"a": wrong} for wrong in list_wrong(schema["additionalProperties"])]
    if "string" in names or not names & OTHERS.keys():
        return []
    return [wrong for name in names & OTHERS.keys() for wrong in OTHERS[name]]


CASES = [
    (table, name, wrong)
    for table in list_tables()
    for name, schema in table.model_json_schema().get("properties", {}).items()
    for wrong in list_wrong(schema)
]


def test_the_walk_finds_the_numbers_of_a_plan():
    """Else the next test could pass by testing nothing."""
    found = {(table.__name__, name) for table, name, _ in CASES}
    assert {("Limits", "request_s"), ("Comparison", "resamples"), ("Objectives", "ttft_ms")} <= found
    assert {("Plan", "seed"), ("LoadLevel", "classes"), ("StepShape", "rps"), ("Judge", "timeout_s")} <= found
    assert len(found) > 60


@pytest.mark.parametrize(("table", "name", "wrong"), CASES)
def test_a_value_of_another_type_is_refused(table, name, wrong):
    """In every key of every table, so that a key that comes later cannot be lax."""
    with pytest.raises(ValidationError) as refused:
        table.model_validate({name: wrong})
    assert name in {fault["loc"][0] for fault in refused.value.errors() if fault["loc"]}


@pytest.mark.parametrize(
    "limits", ["ramp_up_max_s = 1e300", "sample_s = 1e300", "sample_s = 5e-324", "sample_s = 1e-6"]
)
def test_times_that_no_clock_counts_are_refused(limits):
    """In nanoseconds they would be infinite or nothing, in mid-run."""
    with pytest.raises(PlanError, match=limits.split()[0]):
        parse_plan(f"{MINIMAL}[limits]\n{limits}\n")


@pytest.mark.parametrize("wrong", [True, 1.0, "1"])
def test_a_schema_version_is_a_whole_number(wrong):
    """True and 1.0 equal 1 in Python; in a plan they are slips."""
    with pytest.raises(ValidationError, match="schema_version"):
        Plan.model_validate({"schema_version": wrong})


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "[comparison]\nresamples = true",
            "comparison.resamples is True, allowed is a whole number, at least 200 and at most 100000.",
        ),
        ('[limits]\nrequest_s = "5"', "limits.request_s is '5', allowed is a number, above 0."),
        ('[comparison]\nnull_arm = "yes"', "comparison.null_arm is 'yes', allowed is true or false."),
        ("[workload]\nitems_per_segment = 2.0", "items_per_segment is 2.0, allowed is a whole number, at "),
    ],
)
def test_the_sentence_names_place_value_and_type(lines, said):
    """One sentence with the file, the key as written, what is allowed and what to do."""
    with pytest.raises(PlanError) as refused:
        parse_plan(f"{MINIMAL}{lines}\n", source="p.toml")
    assert said in str(refused.value)
    assert refused.value.place == "p.toml"
    assert (refused.value.fix or "").startswith("change ")


def test_a_whole_number_is_a_number():
    """`request_s = 5` and `request_s = 5.0` are one plan with one hash of its thresholds."""
    text = MINIMAL + "[limits]\nrequest_s = {}\n[objectives]\nttft_ms = {}\n"
    whole, real = parse_plan(text.format(5, 300)), parse_plan(text.format(5.0, 300.0))
    assert whole == real
    assert isinstance(whole.limits.request_s, float)
    assert thresholds_sha256(whole) == thresholds_sha256(real)
