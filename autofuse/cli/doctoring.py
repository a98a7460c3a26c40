"""autofuse doctor."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from autofuse.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="doctor")(doctor)


def doctor(
    ops: Annotated[bool, typer.Option("--ops", help="Print the operator table instead.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="With --ops: as the page of the documentation.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show devices, compilers and versions, what is missing, and how to mend it."""
    from autofuse.api import diagnosis, operators
    from autofuse.report import runs

    if ops:
        table = operators.operator_table()
        if as_json:
            options.print_json([dataclasses.asdict(o) for o in table])
        elif as_markdown:
            typer.echo(operators.markdown(table), nl=False)
        else:
            options.paper().print(
                runs.operators([(o.domain, o.name, o.since, o.runs, o.types, o.fuses) for o in table])
            )
        return
    found = diagnosis.diagnose()
    if as_json:
        options.print_json({"ok": found.ok, "findings": [dataclasses.asdict(f) for f in found.findings]})
    else:
        options.paper().print(runs.diagnosis([(f.topic, f.state, f.text, f.mend) for f in found.findings]))
    if not found.ok:
        raise typer.Exit(1)
