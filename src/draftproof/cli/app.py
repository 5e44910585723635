"""The commands in the order of the help, and how a program ends.

Heavy imports happen inside the commands, so that `--help` is instant and torch is needed only by `serve` and
by runs on the reference engine.
"""

import sys
import warnings
from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Any

import typer
import typer.core

from draftproof import __version__
from draftproof.cli.check import check
from draftproof.cli.client_check import client_check
from draftproof.cli.compare import compare
from draftproof.cli.console import INTERRUPTED_CODE, make_printable, print_text, replace_unencodable
from draftproof.cli.costs import costs
from draftproof.cli.init import init
from draftproof.cli.package import package
from draftproof.cli.plan import plan
from draftproof.cli.rules import rules
from draftproof.cli.run import WAIT_MINUTES, WAIT_OPTION, demo, run
from draftproof.cli.samples import samples
from draftproof.cli.screen import screen
from draftproof.cli.serve import fetch, serve
from draftproof.cli.verdict import judge, report, verdict
from draftproof.cli.verify import verify
from draftproof.core.errors import DraftproofError

COMMANDS = (
    (demo, "Example: draftproof demo --out demo-run"),
    (init, 'Example: draftproof init --from-log requests.jsonl --serve "vllm serve ./my-model"'),
    (plan, "Example: draftproof plan plan.toml --full"),
    (check, "Example: draftproof check plan.toml"),
    (run, "Examples: draftproof run plan.toml --out run1   |   draftproof run --resume run1"),
    (report, "Example: draftproof report demo-run"),
    (
        verdict,
        (
            "Examples: draftproof verdict demo-run --json   |   draftproof verdict demo-run --explain "
            "--cell rewriting@busy   |   draftproof verdict demo-run --questions"
        ),
    ),
    (judge, "Example: draftproof judge run1"),
    (compare, "Example: draftproof compare run-march run-april"),
    (package, "Example: draftproof package run1 --key signer.pem --out run1.tar"),
    (verify, "Example: draftproof verify run1.tar --public-key signer.pub --deployment plan.toml"),
    (samples, "Example: draftproof samples plan.toml --gain 0.10 --run run1"),
    (costs, "Example: draftproof costs plan.toml --draft-lengths 2,4 --batches 1,8 --run run1"),
    (screen, "Example: draftproof screen run1 --methods ngram,attached --k 1-8"),
    (rules, "Example: draftproof rules run1 --job vllm-spec --holdout-job vllm-plain"),
    (client_check, "Example: draftproof client-check --streams 128 --chunks-per-s 4000"),
    (fetch, "Example: draftproof fetch"),
    (serve, "Example: draftproof serve --port 8000 --speculation ngram --num-spec-tokens 4"),
)


class _Commands(typer.core.TyperGroup):
    """Leaves with one exit code wherever Ctrl-C ends a command at once; its traceback helps nobody."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, give_minutes(args))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stopped:
            _say("stopped.", INTERRUPTED_CODE)
            raise typer.Exit(INTERRUPTED_CODE) from stopped


def give_minutes(args: Iterable[str]) -> list[str]:
    """Return arguments in which the wait for a quiet host has its minutes; the library knows no other way."""
    given = list(args)
    is_alone = [
        word == WAIT_OPTION and not after.replace(".", "", 1).isdecimal()
        for word, after in pairwise([*given, ""])
    ]
    return [f"{word}={WAIT_MINUTES}" if alone else word for word, alone in zip(given, is_alone, strict=True)]


app = typer.Typer(
    name="draftproof",
    cls=_Commands,
    help="Find out by measurement whether speculative decoding earns its place in your service.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for command, example in COMMANDS:
    app.command(epilog=example)(command)


def _version(show: bool) -> None:  # noqa: FBT001 - the signature of a typer callback
    if show:
        print_text(f"draftproof {__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Find out by measurement whether speculative decoding earns its place in your service."""


def main() -> int:
    """Run the command line and return its exit code; every error a user can cause is one sentence."""
    replace_unencodable()
    warnings.showwarning = _note  # type: ignore[assignment] # only the sentence is shown
    try:
        app()
    except DraftproofError as error:
        return _say(str(error), error.exit_code)
    except OSError as error:
        # What no command foresees: a name that is too long, or an output that takes no more.
        place = f"{error.filename}: " if error.filename else ""
        return _say(f"{place}{error.strerror or error}.", DraftproofError.exit_code)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0
    return 0


def _note(message: Warning | str, *_: object) -> None:
    sys.stderr.write(f"draftproof: note: {make_printable(str(message))}\n")


def _say(text: str, code: int) -> int:
    # What a service said is quoted in some messages and may have lines of its own.
    sys.stderr.write(f"draftproof: {make_printable(' '.join(text.split()))}\n")
    return code
