"""From an arm of the plan to the command that starts it. Pure.

Owns the settings of the reference engine and their flags; an unknown setting is an error, because a setting
that is silently dropped would make two arms differ from what the plan says. And the file that an arm's
process writes to: its end for messages, its whole for facts, its secrets masked.
"""

import contextlib
import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from draftproof.core.errors import PlanError
from draftproof.plan.environment import mask_values
from draftproof.plan.schema import Arm, Plan, Scalar
from draftproof.services.engines.commands import find_written_secret

PORT_MARK, MODEL_MARK = "{port}", "{model}"
LOOPBACK = "127.0.0.1"


class Setting(msgspec.Struct, frozen=True):
    """One setting of the reference engine: its flag, its type, and its choices or lowest value."""

    flag: str
    kind: type[int] | type[float] | type[str]
    choices: tuple[str, ...] = ()
    lowest: float = 1
    highest: float | None = None


REFERENCE_SETTINGS: dict[str, Setting] = {
    "dtype": Setting("--dtype", str, ("float32", "bfloat16")),
    "speculation.method": Setting("--speculation", str, ("off", "ngram", "draft_model", "attached", "self")),
    "speculation.policy": Setting("--draft-policy", str, ("fixed", "adaptive", "batch", "auto")),
    "speculation.num_spec_tokens": Setting("--num-spec-tokens", int),
    "speculation.stop_below": Setting("--stop-below", float, lowest=0, highest=1),
    "drafter": Setting("--drafter", str),
    "speculation.ngram_min": Setting("--ngram-min", int),
    "speculation.ngram_max": Setting("--ngram-max", int),
    "max_num_seqs": Setting("--max-num-seqs", int),
    "max_num_batched_tokens": Setting("--max-num-batched-tokens", int),
    "max_model_len": Setting("--max-model-len", int),
    "max_queue": Setting("--max-queue", int, lowest=0),
    "num_threads": Setting("--num-threads", int),
    "kernels": Setting("--kernels", str, ("auto", "native", "portable")),
}


def list_arms(plan: Plan) -> dict[str, Arm]:
    """Return the plan's arms by name; the null arm, where wanted, is the baseline once more."""
    arms = {"baseline": plan.arms.baseline, "candidate": plan.arms.candidate}
    if plan.arms.alternative is not None:
        arms["alternative"] = plan.arms.alternative
    if plan.comparison.null_arm:
        arms["baseline_null"] = plan.arms.baseline
    return arms


def build_command(name: str, arm: Arm, plan: Plan, model: str | None = None) -> tuple[str, ...] | None:
    """Return the launch command with `{port}` in it, None for a service that runs already.

    `name`: the arm's name, for messages. `plan`: the plan it belongs to. `model`: folder or id of the target
    where it differs from `plan.target.model`, e.g. already fetched. Raises PlanError: a setting is unknown or
    has a wrong value, or there is nothing to start.
    """
    place = f"arms.{plan_section(name)}"
    if arm.engine == "reference":
        check_reference_settings(arm.settings, place)
    if arm.url is not None:
        return None
    if arm.command is not None:
        checked = _checked_command(arm.command, place)
        return tuple(part.replace(MODEL_MARK, model or plan.target.model) for part in checked)
    if arm.engine != "reference":
        raise PlanError(
            f"an arm of engine {arm.engine} needs a url or a command.",
            place=place,
            fix=f'add {place}.url = "http://..." or {place}.command.',
        )
    flags = ({"dtype": plan.target.dtype} if plan.target.dtype else {}) | arm.settings
    command = [sys.executable, "-m", "draftproof", "serve", "--model", model or plan.target.model]
    command += ["--host", LOOPBACK, "--port", PORT_MARK]
    if arm.served_model is not None:
        command += ["--served-model-name", arm.served_model]
    for key, value in flags.items():
        command += [REFERENCE_SETTINGS[key].flag, str(value)]
    return tuple(command)


def plan_section(name: str) -> str:
    """Return the plan's section of an arm: the null arm is described by the baseline's."""
    return "baseline" if name == "baseline_null" else name


def check_reference_settings(settings: Mapping[str, Scalar], place: str) -> None:
    """Check names and values of the reference engine's settings.

    Raises PlanError: names the key, the value and what is allowed.
    """
    for key, value in settings.items():
        full_key = f"{place}.settings.{key}"
        if key not in REFERENCE_SETTINGS:
            close = difflib.get_close_matches(key, REFERENCE_SETTINGS, n=2)
            raise PlanError(
                f"the reference engine has no setting {key!r}.",
                place=full_key,
                fix=f"perhaps {' or '.join(close)} is meant."
                if close
                else f"use one of: {', '.join(REFERENCE_SETTINGS)}.",
            )
        _check_value(REFERENCE_SETTINGS[key], value, full_key)
    low, high = settings.get("speculation.ngram_min", 2), settings.get("speculation.ngram_max", 4)
    if isinstance(low, int) and isinstance(high, int) and low > high:
        raise PlanError(f"ngram_min is {low}, above ngram_max {high}.", place=place, fix="swap them.")


def _check_value(setting: Setting, value: Scalar, place: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    allowed = None
    if setting.choices and value not in setting.choices:
        allowed = f"one of {', '.join(setting.choices)}"
    elif setting.kind is int and not (is_number and isinstance(value, int)):
        allowed = "a whole number"
    elif setting.kind is float and not is_number:
        allowed = "a number"
    if allowed is not None:
        raise PlanError(f"is {value!r}, allowed is {allowed}.", place=place)
    if isinstance(value, int | float) and value < setting.lowest:
        raise PlanError(f"is {value}, allowed is at least {setting.lowest}.", place=place)
    if isinstance(value, int | float) and setting.highest is not None and value > setting.highest:
        raise PlanError(f"is {value}, allowed is at most {setting.highest}.", place=place)


def _checked_command(command: tuple[str, ...], place: str) -> tuple[str, ...]:
    if not command or not any(PORT_MARK in part for part in command):
        raise PlanError(
            "the command does not say which port to use.",
            place=f"{place}.command",
            fix="write {port} where the command takes its port, so that arms do not collide.",
        )
    secret = find_written_secret(command)
    if secret is not None:
        raise PlanError(
            f"the command states the value of --{secret.replace('_', '-')}; a secret in a plan would be "
            "copied into every run.",
            place=f"{place}.command",
            fix="export it and write ${NAME}.",
        )
    return command


_TAIL_BYTES, _TAIL_LINES = 4096, 5
# A service states its configuration while it starts; what it writes for hours afterwards is not read.
_HEAD_BYTES = 4 * 1024 * 1024


def read_tail(path: Path, start: int, secrets: Sequence[str] = ()) -> str:
    """Return the last lines after byte `start`, on one line; "" where there is no file."""
    try:
        with path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(start, end - _TAIL_BYTES))
            lines = log.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return mask_values(" | ".join([line.strip() for line in lines if line.strip()][-_TAIL_LINES:]), secrets)


def read_from(path: Path, start: int, secrets: Sequence[str] = ()) -> str:
    """Return the text after byte `start`, at most the first four MiB; "" where there is no file."""
    try:
        with path.open("rb") as log:
            log.seek(start)
            return mask_values(log.read(_HEAD_BYTES).decode("utf-8", "replace"), secrets)
    except OSError:
        return ""


def mask_file(path: Path, secrets: Sequence[str]) -> None:
    """Mask secrets in a file in place; a file without any is left alone.

    A service that prints its own arguments prints its key; what it wrote is kept with the run.
    """
    with contextlib.suppress(OSError):
        data = path.read_bytes() if secrets else b""
        if any(secret.encode() in data for secret in secrets):
            masked = mask_values(data.decode("utf-8", "surrogateescape"), secrets)
            path.write_bytes(masked.encode("utf-8", "surrogateescape"))
