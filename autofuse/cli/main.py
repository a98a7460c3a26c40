"""The entry point: commands put together, errors turned into messages and exit codes."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Annotated

import typer

from autofuse.errors import AutofuseError, VerificationError
from autofuse.version import __version__

GROUPS = ("tuning", "estimating", "running", "reporting", "doctoring", "caching")
"""Modules of this package, each with a function `register(app)`, in the order of the help."""

DEBUG = "--debug"
EPILOG = (
    "MODEL is a path or sample:NAME. Exit codes: 0 done, 1 the work failed, 2 bad use, 3 numbers or a plan do not match, 130 Ctrl-C, "
    "141 nobody reads the output. "
    f"{DEBUG} shows where an error came from. Nothing is sent anywhere."
)


def build() -> typer.Typer:
    """The application with all commands."""
    app = typer.Typer(
        name="autofuse",
        help="Finds the fastest way to run an ONNX model by searching over kernel fusions and tile sizes.",
        epilog=EPILOG,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode="rich",
    )

    @app.callback()
    def top(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
        ] = False,
    ) -> None:
        del version

    for name in GROUPS:
        importlib.import_module(f"autofuse.cli.{name}").register(app)
    return app


def _version(value: bool) -> None:
    if value:
        typer.echo(f"autofuse {__version__}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; always ends with SystemExit."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = DEBUG in given
    words = [a for a in given if a != DEBUG]
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            build()(words, prog_name="autofuse")
        except AutofuseError as error:
            _fail(error, debug)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            sys.exit(130)
        except BrokenPipeError:
            # the reader of a pipe has gone; a second complaint at exit would only be noise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
                    continue
                with contextlib.suppress(OSError, ValueError):
                    os.dup2(nowhere, stream.fileno())
            sys.exit(128 + signal.SIGPIPE)
        except Exception as error:  # noqa: BLE001  (the outermost boundary: a fault of autofuse must not show as a bare traceback)
            _fault(error, debug)


def _fail(error: AutofuseError, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    typer.echo(f"error: {error}", err=True)
    if isinstance(error, VerificationError) and not debug:
        typer.echo(f"This is a fault in autofuse itself. Run again with {DEBUG} to see where it comes from.", err=True)
    sys.exit(error.exit_code)


def _fault(error: Exception, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    typer.echo(f"error: a fault in autofuse itself: {type(error).__name__}: {error}", err=True)
    if not debug:
        typer.echo(f"Run again with {DEBUG} to see where it comes from.", err=True)
    sys.exit(1)


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    # numpy's and others' own warnings are no message to a user of the command line
    if issubclass(category, UserWarning):
        typer.echo(f"warning: {message}", err=True)


if __name__ == "__main__":
    main()
