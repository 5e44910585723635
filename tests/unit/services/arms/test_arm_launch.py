"""An arm of the plan becomes a command, or one sentence about why not."""

import sys

import pytest
from arm_builders import plan

from draftproof.core.errors import PlanError
from draftproof.plan.loading import load_builtin_plan
from draftproof.services.arms.launch import REFERENCE_SETTINGS, build_command, list_arms


def command(extra: str, name: str = "candidate", model: str | None = None):
    made = plan(extra)
    return build_command(name, list_arms(made)[name], made, model)


def test_reference_arm_is_started_with_its_settings_as_flags():
    """Every setting of the plan reaches the command line, and the port is left to be filled in."""
    made, _ = load_builtin_plan("demo")
    built = build_command("candidate", made.arms.candidate, made, model="folder")
    assert built is not None
    assert built[:4] == (sys.executable, "-m", "draftproof", "serve")
    flags = dict(zip(built[4::2], built[5::2], strict=True))
    assert flags == {
        "--model": "folder", "--host": "127.0.0.1", "--port": "{port}", "--dtype": "float32",
        "--speculation": "ngram", "--num-spec-tokens": "4", "--max-num-seqs": "4",
        "--max-num-batched-tokens": "256", "--num-threads": "2",
    }  # fmt: skip


def test_precision_reaches_the_command_only_where_the_plan_states_it():
    """Without `target.dtype` the engine's own default stands."""
    assert "--dtype" not in (command("") or ())
    built = command('[target]\ndtype = "bfloat16"\n') or ()
    assert built[built.index("--dtype") + 1] == "bfloat16"


def test_every_setting_has_a_flag_that_serve_knows():
    """No setting of the plan maps to a flag that the command line lacks."""
    import inspect

    from draftproof.cli.serve import serve

    known = {f"--{name.replace('_', '-')}" for name in inspect.signature(serve).parameters}
    assert {setting.flag for setting in REFERENCE_SETTINGS.values()} <= known


def test_unknown_setting_is_named_with_a_close_match():
    """A mistyped setting is never dropped: it stops the run by name."""
    with pytest.raises(PlanError) as caught:
        command("max_num_seq = 8\n")
    assert str(caught.value).startswith("arms.candidate.settings.max_num_seq: ")
    assert "perhaps max_num_seqs is meant" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('max_num_seqs = "8"', "is '8', allowed is a whole number"),
        ("max_num_seqs = true", "is True, allowed is a whole number"),
        ("max_num_seqs = 0", "is 0, allowed is at least 1"),
        ('dtype = "float16"', "is 'float16', allowed is one of float32, bfloat16"),
        ('"speculation.ngram_min" = 5', "ngram_min is 5, above ngram_max 4"),
    ],
)
def test_wrong_value_of_a_setting_is_named(line, said):
    """A setting's wrong value is an error with key, value and what is allowed."""
    with pytest.raises(PlanError, match=said):
        command(line + "\n")


def test_arm_with_a_url_is_attached_to():
    """An arm that runs already has no command."""
    assert command('[arms.alternative]\nurl = "http://127.0.0.1:1"\n', "alternative") is None


def test_own_command_must_take_the_port():
    """A command without {port} is refused: arms would collide."""
    with pytest.raises(PlanError, match="does not say which port"):
        command('[arms.alternative]\nengine = "generic"\ncommand = ["serve"]\n', "alternative")


def test_generic_arm_without_url_and_command_is_refused():
    """There must be something to start or to attach to."""
    with pytest.raises(PlanError, match="needs a url or a command"):
        command('[arms.alternative]\nengine = "generic"\n', "alternative")


def test_own_command_and_served_name_are_kept():
    """A command of the plan is used as it stands; a served name becomes a flag."""
    own = '[arms.alternative]\nengine = "generic"\ncommand = ["serve", "--port={port}"]\n'
    assert command(own, "alternative") == ("serve", "--port={port}")
    named = command('[arms.alternative]\nserved_model = "m"\n', "alternative")
    assert named is not None
    assert "--served-model-name" in named


def test_null_arm_is_the_baseline_once_more():
    """The null arm has the baseline's section; without it there is none."""
    made = plan()
    assert list_arms(made)["baseline_null"] == made.arms.baseline
    assert "baseline_null" not in list_arms(plan("[comparison]\nnull_arm = false\n"))
