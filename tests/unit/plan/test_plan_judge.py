"""The table `[judge]`: an address that can be asked, and no secret that would be copied into every run."""

import pytest

from draftproof.core.errors import PlanError
from draftproof.plan.loading import parse_plan

PLAN = """\
name = "p"
[[load]]
name = "l"
concurrency = 1
[arms.baseline]
[arms.candidate]
[judge]
model = "m"
"""


def parse(url="http://h:9000/v1", more=""):
    return parse_plan(PLAN + f'url = "{url}"\n{more}').judge


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://h/x", "this is no address"),
        ("h:9000", "this is no address"),
        ("http://", "this is no address"),
        ("http://h:99999", "this is no address"),
        ("http://a b", "this is no address"),
        ("https://hidden:hidden@h", "may hold no username"),
        ("https://:hidden@h", "may hold no password"),
        ("https://h/v1?api-key=hidden", "may hold no query"),
    ],
)
def test_an_address_that_cannot_be_asked_or_holds_a_key_is_refused(url, said):
    """One sentence with the key of the plan; the address is not quoted, for it may hold a password."""
    with pytest.raises(PlanError, match=rf"judge\.url: .*{said}") as refused:
        parse(url)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('headers = { Authorization = "Bearer hidden" }', "judge.headers: Authorization states a secret"),
        ('headers = { X-Api-Key = "hidden" }', "judge.headers: X-Api-Key states a secret"),
        ('headers = { Cookie = "hidden" }', "judge.headers: Cookie states a secret"),
        ('request = { api_key = "hidden" }', "judge.request: api_key states a secret"),
    ],
)
def test_a_key_that_is_stated_is_refused_as_that_of_an_arm_is(more, said):
    """Whether or not a check of type judge is in the workload: the plan is copied all the same."""
    with pytest.raises(PlanError) as refused:
        parse(more=more)
    assert said in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_keys_from_the_environment_and_plain_fields_are_taken():
    """References, headers that hold no key, and fields whose names only resemble a key's."""
    found = parse(
        more='headers = { Authorization = "Bearer ${KEY}", X-Team = "a" }\n'
        "request = { top_k = 1, max_completion_tokens = 9 }"
    )
    assert found is not None
    assert found.headers["Authorization"] == "Bearer ${KEY}"
