"""`hedgerow`: the command line's table of contents, and the one place where errors become one line and an exit code.

    exit 0     done                                  exit 2     the call was wrong (UsageError)
    exit 1     anything else that went wrong         exit 130   interrupted by Ctrl-C
    exit 141   the reader of stdout went away

Every error is one line on stderr and nothing on stdout; `--debug` shows the traceback instead. Nothing here imports
numpy or torch, so that `hedgerow --help` is instant.
"""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hedgerow.cli import bounds, chat, doctor, export, generate, profile_step, recipes, simulate, train
from hedgerow.core.errors import HedgerowError, UnknownName

BROKEN_PIPE = 141
INTERRUPTED = 130


class Commands(TyperGroup):
    """A group whose errors are one line, with a did-you-mean for commands and flags."""

    def main(
        self, args: Sequence[str] | None = None, prog_name: str | None = None, complete_var: str | None = None,
        standalone_mode: bool = True, windows_expand_args: bool = True, **extra: Any,
    ) -> Any:
        """Run a command line and leave the process with its exit code (return the code unless `standalone_mode`)."""
        argv = list(sys.argv[1:] if args is None else args)
        for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show a character must not end the program
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        try:
            result = super().main(argv, prog_name or "hedgerow", complete_var, False, windows_expand_args, **extra)
            code = result if isinstance(result, int) else 0
            sys.stdout.flush()
        except BrokenPipeError:
            code = _nobody_reads()
        except Exception as error:  # noqa: BLE001 - the one place that turns every failure into a line and a code
            if "--debug" in argv:
                traceback.print_exc()
            text, code = explain(error, argv)
            print(f"Error: {text}", file=sys.stderr)
        if standalone_mode:
            sys.exit(code)
        return code

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command; Ctrl-C outside of a generation says so and ends with 130."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise typer.Exit(_nobody_reads()) from None
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of a name. Raises UnknownName with the nearest one."""
        if args and self.get_command(ctx, args[0]) is None:
            raise UnknownName("command", args[0], self.list_commands(ctx), f"`{ctx.command_path} --help` lists them")
        return super().resolve_command(ctx, args)


def _nobody_reads() -> int:
    """Send what is still to be written nowhere: the interpreter flushes both streams once more when it ends."""
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    return BROKEN_PIPE


def explain(error: Exception, argv: Sequence[str] = ()) -> tuple[str, int]:
    """One line about an error and the exit code that goes with it."""
    if isinstance(error, HedgerowError):
        return one_line(str(error)), error.exit_code
    if hasattr(error, "format_message"):  # the parser's own errors
        return one_line(_usage(error, argv)), int(error.exit_code)  # type: ignore[attr-defined]
    if isinstance(error, OSError):
        about = f": {error.filename}" if error.filename else ""
        return one_line(f"{error.strerror or error}{about}"), 1
    return one_line(f"unexpected {type(error).__name__}: {error}; --debug shows where"), 1


def _usage(error: Any, argv: Sequence[str]) -> str:
    """What the parser refused, with the value and the nearest flag, which it leaves out."""
    ctx, param = getattr(error, "ctx", None), getattr(error, "param", None)
    help_ = f"`{ctx.command_path} --help`" if ctx is not None else "`hedgerow --help`"
    if hasattr(error, "possibilities"):
        known = [flag for p in ctx.command.params for flag in p.opts] if ctx is not None else []
        close = difflib.get_close_matches(error.option_name, known, n=1, cutoff=0.5)
        guess = f"Did you mean {close[0]!r}?" if close else f"{help_} lists them."
        return f"unknown option {error.option_name!r}. {guess}"
    for flag, value in zip(argv, [*argv[1:], ""], strict=True):
        if param is not None and flag.split("=")[0] in param.opts:
            value = flag.split("=", 1)[1] if "=" in flag else value
            return f"{flag.split('=')[0]} is {value!r}: {error.message}; see {help_}"
    return f"{error.format_message().rstrip('.')}; see {help_}"


def one_line(text: str) -> str:
    """The text without line breaks or runs of blanks."""
    return " ".join(text.split())


app = typer.Typer(
    name="hedgerow", cls=Commands, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Tree-based speculative decoding: a language model generates faster and says the same.",
)
app.command(name="generate")(generate.generate)
app.command(name="chat")(chat.chat)
app.add_typer(recipes.app, name="recipes", cls=Commands)
app.command(name="doctor")(doctor.doctor)
app.command(name="export")(export.export)
app.command(name="profile-step")(profile_step.profile_step)
app.command(name="simulate")(simulate.simulate)
app.command(name="bounds")(bounds.bounds)
app.add_typer(train.app, name="train", cls=Commands)


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Tree-based speculative decoding: a language model generates faster and says the same."""
    if version:
        from hedgerow import __version__

        print(f"hedgerow {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
