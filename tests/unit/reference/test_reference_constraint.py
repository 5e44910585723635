"""Constrained output: it satisfies its schema, and speculation changes none of it."""

import json

import pytest
import torch
from tiny_engine import (
    EOS_ID,
    OracleProposer,
    byte_tokenizer,
    make_engine,
    make_request,
    repetitive_prompt,
    run_all,
    tiny_target,
    token_ids_of,
)

from draftproof.core.errors import UsageError
from draftproof.reference.processors import Constraint, Grammars

VOCAB = 260  # three more than the byte tokenizer knows
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "kind": {"enum": ["red", "green", "blue"]},
            "size": {"type": "integer", "minimum": 0, "maximum": 999},
            "name": {"type": "string", "pattern": "^[a-z]{3,8}$"},
        },
        "required": ["kind", "size", "name"],
        "additionalProperties": False,
    }
)
ENOUGH = 300  # tokens that hold any output of the schema, with all the whitespace it allows


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def prompts():
    generator = torch.Generator().manual_seed(8)
    return [repetitive_prompt(generator) for _ in range(4)]


@pytest.fixture(scope="module")
def grammars():
    return Grammars(byte_tokenizer(), vocab_size=VOCAB, eos_ids={EOS_ID})


def ids_of(text: str) -> list[int]:
    return list(byte_tokenizer().encode(text))


def after(constraint: Constraint, text: str) -> set[int]:
    """Return the token ids allowed behind a text."""
    return set(constraint.allowed(ids_of(text))[-1].nonzero().flatten().tolist())


def text_of(outputs) -> str:
    return "".join(output.text for output in outputs)


def test_rows_follow_the_drafts_and_the_position_stays(grammars) -> None:
    """Row j allows what ordinary decoding would be allowed after the first j drafts; asking moves nothing."""
    text = '{"kind": "red", "size": 12, "name": "abc"}'
    token_ids = [*ids_of(text), EOS_ID]
    drafted = grammars.start(SCHEMA)
    stepped = grammars.start(SCHEMA)
    rows = drafted.allowed(token_ids)
    assert torch.equal(rows, drafted.allowed(token_ids))
    for depth, token_id in enumerate(token_ids):
        assert torch.equal(rows[depth], stepped.allowed([])[0])
        assert rows[depth, token_id]
        stepped.commit(token_id)
    assert stepped.failure is None


def test_committing_part_of_a_draft_goes_on_from_there(grammars) -> None:
    """After a round that kept two drafts of five, rows are those behind these two."""
    constraint, fresh = grammars.start(SCHEMA), grammars.start(SCHEMA)
    token_ids = ids_of('{"kin')
    constraint.allowed(token_ids)
    for token_id in token_ids[:2]:
        constraint.commit(token_id)
    assert torch.equal(constraint.allowed([])[0], fresh.allowed(token_ids[:2])[2])


def test_a_forbidden_draft_has_no_place_and_rows_behind_it_are_open(grammars) -> None:
    """What the grammar forbids is off in its row; rows behind it are whole, fit to be drawn from."""
    token_ids = [*ids_of("{"), *ids_of("x"), *ids_of('"')]
    rows = grammars.start(SCHEMA).allowed(token_ids)
    assert not rows[1, token_ids[1]]
    assert bool(rows[2:].all())
    assert not bool(rows[1].all())


def test_a_complete_text_leaves_the_end_alone(grammars) -> None:
    """Behind the last brace only the end is left, also behind the end itself."""
    text = '{"kind":"blue","size":7,"name":"abc"}'
    assert after(grammars.start(SCHEMA), text) == {EOS_ID}
    rows = grammars.start(SCHEMA).allowed([*ids_of(text), EOS_ID, EOS_ID])
    assert rows[-1].nonzero().flatten().tolist() == [EOS_ID]
    assert rows[-2].nonzero().flatten().tolist() == [EOS_ID]


def test_an_optional_end_is_allowed_and_not_forced(grammars) -> None:
    """A number may end or go on, and asking behind its end takes nothing away."""
    constraint = grammars.start('{"type": "integer"}')
    before = constraint.allowed(ids_of("12"))
    assert before[-1, EOS_ID]
    assert before[-1, ids_of("3")[0]]
    constraint.allowed([*ids_of("12"), EOS_ID, EOS_ID, *ids_of("3")])
    assert torch.equal(before, constraint.allowed(ids_of("12")))


def test_ids_beyond_the_tokenizer_are_never_allowed(grammars) -> None:
    """The model's logits are wider than the vocabulary: such ids are off, also inside a free string."""
    constraint = grammars.start('{"type": "string"}')
    assert not bool(constraint.allowed(ids_of('"ab'))[:, len(byte_tokenizer()) :].any())


def test_every_end_token_of_a_model_may_end() -> None:
    """A model with two end tokens may use either."""
    grammars = Grammars(byte_tokenizer(), vocab_size=VOCAB, eos_ids={EOS_ID, 3})
    assert after(grammars.start('{"const": true}'), "true") == {EOS_ID, 3}


def test_whitespace_is_allowed_and_bounded(grammars) -> None:
    """Indented text passes, and a loop of spaces ends."""
    constraint = grammars.start(SCHEMA)
    space = ids_of(" ")[0]
    assert space in after(constraint, "{\n    ")
    assert space not in after(constraint, "{" + " " * 20)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ('{"type": "object"', "no JSON object"),
        ("[]", "no JSON object"),
        ('{"minimum": NaN}', "no JSON object"),
        ('{"type": "object"}}], "more": [{"a": {}', "no JSON object"),
        ('{"a":' * 10_000, "no JSON object"),
        ('{"items":' * 300 + "{}" + "}" * 300, "cannot be compiled"),
        ('{"type": "strange"}', "Invalid type"),
        ('{"enum": []}', "Unsatisfiable"),
        ('{"type": "string", "pattern": "("}', "regex"),
        ('{"$ref": "http://localhost:1/schema"}', "http://localhost:1/schema"),
    ],
    ids=range(10),
)
def test_a_bad_schema_is_refused_by_name(target, schema, says) -> None:
    """The request is turned away before it takes a place, with the field, the reason and a fix."""
    engine = make_engine(target)
    with pytest.raises(UsageError) as caught:
        engine.add_request(make_request("a", [1, 2], json_schema=schema))
    assert caught.value.place == "json_schema"
    assert says in caught.value.message
    assert caught.value.fix
    assert "\n" not in caught.value.message
    assert not engine.has_work


@pytest.mark.parametrize("eos_ids", [set(), {EOS_ID}])
def test_a_model_that_cannot_be_constrained_says_so(eos_ids) -> None:
    """Without an end token, or with a tokenizer of no known form, the field is refused, not ignored."""
    tokenizer = object() if eos_ids else byte_tokenizer()
    with pytest.raises(UsageError, match="json_schema"):
        Grammars(tokenizer, vocab_size=VOCAB, eos_ids=eos_ids).check(SCHEMA)


def test_greedy_json_is_the_same_with_speculation(target, prompts) -> None:
    """A random model is held to the schema; n-gram and oracle drafts leave every token as it was."""
    import jsonschema

    plain_requests = [
        make_request(f"r{index}", prompt, max_tokens=ENOUGH, json_schema=SCHEMA)
        for index, prompt in enumerate(prompts)
    ]
    plain = run_all(make_engine(target), plain_requests)
    for found in plain.values():
        jsonschema.validate(json.loads(text_of(found)), json.loads(SCHEMA))
        assert found[-1].finish_reason == "stop"
        assert token_ids_of(found)[-1] == EOS_ID
    table = {tuple(prompt): token_ids_of(plain[f"r{index}"]) for index, prompt in enumerate(prompts)}
    for proposers in (None, {"ngram": OracleProposer(table, len(prompts[0]))}):
        requests = [
            make_request(f"r{index}", prompt, max_tokens=ENOUGH, drafts=4, json_schema=SCHEMA)
            for index, prompt in enumerate(prompts)
        ]
        outputs = run_all(make_engine(target, proposers=proposers), requests)
        rounds = [one.round for found in outputs.values() for one in found if one.round is not None]
        assert {name: token_ids_of(found) for name, found in outputs.items()} == {
            name: token_ids_of(found) for name, found in plain.items()
        }
        assert sum(one.proposed for one in rounds) > 0
        if proposers is not None:
            assert sum(one.accepted for one in rounds) == sum(one.proposed for one in rounds)


def test_drafts_the_grammar_forbids_are_rejected(target, prompts) -> None:
    """A drafter that proposes nonsense wherever it can costs acceptance, never validity."""
    nonsense = {tuple(prompts[0]): ids_of("{ nonsense nonsense" * 20)}
    engine = make_engine(target, proposers={"ngram": OracleProposer(nonsense, len(prompts[0]))})
    plain = run_all(
        make_engine(target), [make_request("a", prompts[0], max_tokens=ENOUGH, json_schema=SCHEMA)]
    )["a"]
    found = run_all(engine, [make_request("a", prompts[0], max_tokens=ENOUGH, drafts=4, json_schema=SCHEMA)])[
        "a"
    ]
    assert token_ids_of(found) == token_ids_of(plain)
    assert any(one.round.accepted < one.round.proposed for one in found if one.round is not None)


@pytest.mark.parametrize("drafts", [0, 4])
def test_sampled_json_is_valid_beside_free_text(target, prompts, drafts) -> None:
    """Hot sampling with penalties stays within the schema, and a free neighbour is untouched by it."""
    import jsonschema

    free = make_request("free", prompts[3], drafts=drafts)
    held = [
        make_request(
            f"held{seed}",
            prompts[seed],
            max_tokens=ENOUGH,
            drafts=drafts,
            json_schema=SCHEMA,
            temperature=2.0,
            seed=seed,
            repetition_penalty=1.2,
        )
        for seed in range(3)
    ]
    outputs = run_all(make_engine(target), [free, *held])
    for request in held:
        jsonschema.validate(json.loads(text_of(outputs[request.request_id])), json.loads(SCHEMA))
    alone = run_all(make_engine(target), [make_request("free", prompts[3])])["free"]
    assert token_ids_of(outputs["free"]) == token_ids_of(alone)


@pytest.mark.parametrize("drafts", [0, 4])
def test_a_complete_text_comes_before_ignore_eos_and_min_tokens(target, prompts, drafts) -> None:
    """Both fill the output with end tokens rather than leave the schema."""
    schema = '{"enum": ["yes", "no"]}'
    request = make_request(
        "a", prompts[0], drafts=drafts, json_schema=schema, ignore_eos=True, min_tokens=20, max_tokens=20
    )
    found = run_all(make_engine(target), [request])["a"]
    assert json.loads(text_of(found)) in {"yes", "no"}
    tokens = token_ids_of(found)
    assert len(tokens) == 20
    assert set(tokens[5:][-10:]) == {EOS_ID}
    assert found[-1].finish_reason == "length"


def test_a_grammar_that_runs_into_a_dead_end_ends_in_an_error(target, prompts, monkeypatch) -> None:
    """Where a grammar cannot go on, that request ends with the reason and its neighbour goes on."""
    monkeypatch.setattr(Grammars, "check", lambda _self, _schema: None)
    start = Grammars.start

    def start_broken(self, schema):
        constraint = start(self, schema)
        constraint.failure = "json_schema cannot be followed further: a dead end"
        return constraint

    monkeypatch.setattr(Grammars, "start", start_broken)
    outputs = run_all(
        make_engine(target),
        [make_request("dead", prompts[0], json_schema="{}"), make_request("other", prompts[1])],
    )
    last = outputs["dead"][-1]
    assert last.finish_reason == "error"
    assert "json_schema" in str(last.error)
    assert outputs["other"][-1].finish_reason in {"stop", "length"}


def test_compiled_schemas_are_kept_and_their_number_is_bounded(grammars) -> None:
    """The same schema is compiled once; many different ones do not pile up; two outputs do not mix."""
    one, other = grammars.start(SCHEMA), grammars.start(SCHEMA)
    one.commit(ids_of("{")[0])
    assert not torch.equal(one.allowed([]), other.allowed([]))
    for number in range(200):
        grammars.check(json.dumps({"const": number}))
    kept = grammars._compile.cache_info()
    assert kept.currsize <= kept.maxsize < 200


@pytest.mark.live
def test_the_demo_models_tokenizer_is_bridged() -> None:
    """With a vocabulary of tens of thousands and two end tokens, text passes and ends as it should."""
    from transformers import AutoTokenizer

    from draftproof.reference.weights.fetch import demo_model_path

    tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
    eos_ids = {tokenizer.eos_token_id, 0}
    constraint = Grammars(tokenizer, vocab_size=len(tokenizer) + 64, eos_ids=eos_ids).start(SCHEMA)
    token_ids = tokenizer('{"kind": "red", "size": 12, "name": "abc"}').input_ids
    rows = constraint.allowed(token_ids)
    assert all(rows[depth, token_id] for depth, token_id in enumerate(token_ids))
    assert set(rows[-1].nonzero().flatten().tolist()) == eos_ids


LOOPS = ('{"$ref": "#"}', '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}')


@pytest.mark.parametrize("schema", LOOPS)
def test_a_schema_that_nothing_satisfies_is_refused_before_it_runs(schema, grammars) -> None:
    """A schema that only refers to itself compiles and has no first token: that is the client's error."""
    with pytest.raises(UsageError, match="satisfied"):
        grammars.check(schema)
