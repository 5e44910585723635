"""Nothing that looks like a secret leaves in a package; the message names the place and never the secret."""

import pytest

from draftproof.core.errors import UsageError
from draftproof.tell.handover.withholding import find_secret_places, refuse_secrets

# Made up for these tests, in the shapes that real ones have.
SECRETS = {
    "a bearer token": "Bearer abcdefghijklmnop",
    "an authorization header": 'Authorization: "Basic dXNlcjpwYXNzd29yZA=="',
    "an API key": "sk-proj-abc123DEF456ghi789",
    "a key given by name": "api_key=abcdef0123456789",
    "a Hugging Face token": "hf_abcdefghijklmnopqrstu",
    "a GitHub token": "ghp_abcdefghijklmnopqrst0123456789",
    "a GitLab token": "glpat-abcdefghijklmnop1234",
    "a Slack token": "xoxb-1234567890-abcdef",
    "an AWS key id": "AKIAABCDEFGHIJKLMNOP",
    "a Google API key": "AIzaabcdefghijklmnopqrstuvwxyz0123456",
    "a JSON web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-def",
    "a private key": "-----BEGIN OPENSSH PRIVATE KEY-----",
    "a password in an address": "https://user:pass@example.com/v1",
    "a key in a command": "vllm serve m --api-key xyz",
    "a key in an address": "https://example.com/v1?token=abcdefgh",
    "a cookie": "Cookie: lang=en; session=abcdefgh1234",
    "a Slack webhook": "https://hooks.slack.com/services/T0AAAAAAA/B0BBBBBBB/abcdefghijklmnop",
}
HARMLESS = (
    "Bearer ***",
    'Authorization = "Bearer ${API_KEY}"',
    "the bearer of this letter",
    "http://127.0.0.1:8000/v1/chat@home",
    "https://example.com:443/a@b",
    "https://***@example.com/v1",
    "sk-learn is a library",
    "sk-this-is-only-a-long-word-with-hyphens",
    "hf_hub",
    '"api_key_header": "x-api-key"',
    "-----BEGIN PUBLIC KEY-----",
    "mail me at user@example.com",
    "api_key: required",
    '"max_token_length": 123456789012',
    "the password is a secret of 16 letters",
    "api_key=${OPENAI_API_KEY_0123456789}",
    "vllm serve m --api-key ${KEY} --port 8000",
    "vllm serve m --api-key *** --port 8000",
    'command = ["vllm", "--api-key", "${KEY}", "--port", "1"]',
    "vllm serve m --api-key EMPTY",
    "vllm serve m --api-key YOUR_API_KEY",
    "give the key with --api-key or in the environment; --token is required, --password must be set.",
    "--max-tokens 1000 --tokenizer abcdef --api-key-file secrets.txt --token <TOKEN>",
    "https://h/v1?token=${TOKEN}&key=***",
    "https://h/v1?page=2&key=name&max_tokens=1000000000",
    "https://h/v1?token=YOUR_TOKEN",
    'parser.add_argument("--differing-token", type=int)',
    "https://${USER}:${PASSWORD}@h/v1",
    "Cookie: session=${SESSION}",
    "Cookie: session=***; lang=en",
    "a cookie: sugar, flour and 2 eggs = dough",
    "document.cookie = 'theme=darkmode'",
    "Set-Cookie: id=1; Max-Age=31536000; Path=/",
    # The address that the service's own documentation prints where a key would stand.
    f"https://hooks.slack.com/services/T00000000/B00000000/{24 * 'X'}",
)


def scan(tmp_path, text, values=()):
    path = tmp_path / "member"
    path.write_text("first line\n" + text + "\n")
    return find_secret_places({"journal/records.jsonl": path}, values)


@pytest.mark.parametrize(("kind", "text"), SECRETS.items())
def test_common_secrets_are_found(tmp_path, kind, text):
    """Bare and inside a JSON line, each by its kind and line."""
    for written in (text, '{"text": "say ' + text.replace('"', '\\"') + ' now"}'):
        (place,) = scan(tmp_path, written)
        assert (place.kind, place.place) == (kind, "journal/records.jsonl:2")


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_is_let_through(tmp_path, text):
    """Masks, references to the environment, addresses without a password, and prose."""
    assert scan(tmp_path, text) == ()


def test_the_value_of_a_known_secret_is_found_in_any_shape(tmp_path):
    """A key without a familiar pattern, also where JSON writes its signs otherwise."""
    value = 'pa"ss/w\\ord'
    assert scan(tmp_path, value, [value])[0].kind == "the value of a secret of the plan"
    assert scan(tmp_path, '{"t": "pa\\"ss/w\\\\ord"}', [value])
    assert scan(tmp_path, value) == ()


def test_the_refusal_names_the_place_and_not_the_secret(tmp_path):
    """A log of the refusal is no leak."""
    places = scan(tmp_path, SECRETS["an API key"])
    with pytest.raises(UsageError) as refused:
        refuse_secrets(places, ())
    assert "an API key at journal/records.jsonl:2" in str(refused.value)
    assert "sk-" not in str(refused.value)


def test_a_place_may_be_allowed_and_nothing_else(tmp_path):
    """What is allowed must be there, or the option has a slip of the pen in it."""
    places = scan(tmp_path, SECRETS["an API key"])
    refuse_secrets(places, ["journal/records.jsonl:2"])
    with pytest.raises(UsageError, match="looks like a secret"):
        refuse_secrets(places, ["journal/records.jsonl:1"])
    with pytest.raises(UsageError, match=r"nothing at journal/records\.jsonl:9"):
        refuse_secrets(places, ["journal/records.jsonl:2", "journal/records.jsonl:9"])


@pytest.mark.parametrize(
    "text",
    [
        "nvapi-abcdefghijklmnop0123456789",
        "VLLM_API_KEY=abcdef0123456789",
        '"password": "hunter2hunter2"',
        "https://example.com/v1?api_key=abcdef0123456789",
        "aws_secret_access_key=wJalrXUtnFEMI/K7MDENG",
        "Subscription-Key: 0123456789abcdef",
        'command = ["vllm", "--api-key", "xyz"]',
        '"command": "--hf-token=abc --port 1"',
        "tool --password 'hunter2'",
        "https://h/v1?token=${TOKEN}&key=abcdef1",
        "https://h/v1?a=b&access_token=abcdefgh",
        "https://h/v1?key=${A}&amp;sig=abcdef1",
        "https://${USER}:hunter22@h/v1",
        "https://user:${A}hunter2@h/v1",
        '"Cookie": "sid=abcdefgh"',
        'headers = { Cookie = "a=${A}; sid=abcdefgh" }',
        "Set-Cookie: Max-Age=31536000; id=abcdefgh; Path=/",
        "https://hooks.slack.com/triggers/T0AAAAAAA/123456789/abcdefghijklmnop",
    ],
)
def test_a_key_is_found_by_its_name_or_its_vendor(tmp_path, text):
    """In an address, a header, a setting or a document."""
    assert len(scan(tmp_path, text)) == 1
