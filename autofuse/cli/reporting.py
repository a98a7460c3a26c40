"""autofuse report, explain and compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autofuse.cli import options
from autofuse.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

RESULTS = typer.Argument(
    metavar="RESULTS", help="A result folder, or one with a single result below it.", show_default=False
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(name="report")(report)
    app.command(name="explain")(explain)
    app.command(name="compare")(compare)


def report(
    results: Annotated[Path, RESULTS],
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Where the HTML file goes.", show_default="report.html in the result folder"
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the trade-off table, and write plots and tables into one HTML file."""
    from autofuse.report import summary, terminal
    from autofuse.report.folder import REPORT, write_file
    from autofuse.report.html import html_report
    from autofuse.report.results import open_results

    found = open_results(results)
    target = found.path / REPORT if html is None else html
    write_file(target, html_report(found).encode())
    if as_json:
        options.print_json({**summary.as_json(found), "html": str(target)})
    else:
        options.paper().print(terminal.results(found))
    options.say(f"report: {target}")


def explain(
    subject: Annotated[
        str, typer.Argument(metavar="RESULTS|MODEL", help="A result folder, or a model.", show_default=False)
    ],
    a: Annotated[
        str | None,
        typer.Argument(metavar="A", help="An edge (e12), a node (7, Conv#7) or a value by name.", show_default=False),
    ] = None,
    b: Annotated[
        str | None, typer.Argument(metavar="B", help="A second node or value: what lies between.", show_default=False)
    ] = None,
    device: options.Device = "auto",
    shape: options.Shape = None,
    threads: options.Threads = None,
    as_json: options.AsJson = False,
) -> None:
    """Say why edges were or weren't fused, and what they cost. For a model without results the rules alone are asked."""
    from autofuse.report import explain as explaining

    path = Path(subject)
    names = [n for n in (a, b) if n is not None]
    if subject.startswith("sample:") or path.suffix == ".onnx" or (path.is_file() and path.suffix != ".json"):
        edges = _edges_of_model(subject, device, shape, threads)
    else:
        from autofuse.report.results import open_results

        if shape:
            raise UsageError("--shape belongs to a model; results have their shapes")
        edges = open_results(path).verdicts
    shown = explaining.chosen(edges, names)
    if as_json:
        options.print_json({"edges": shown.to_dict(orient="records")})
    else:
        typer.echo(explaining.explain_text(edges, names))


def _edges_of_model(model: str, device: str, shape: list[str] | None, threads: int | None) -> pd.DataFrame:
    from autofuse.api.devices import open_device
    from autofuse.importer.importing import import_model
    from autofuse.importer.load import load_model
    from autofuse.report.estimate import estimate

    graph = import_model(load_model(model), options.shapes(shape))
    opened = open_device(device, threads)
    return estimate(graph, opened.target, opened.threads).all_edges


def compare(
    results_a: Annotated[Path, typer.Argument(metavar="RESULTS_A", show_default=False)],
    results_b: Annotated[Path, typer.Argument(metavar="RESULTS_B", show_default=False)],
    as_json: options.AsJson = False,
) -> None:
    """Say which intermediates one result stores and the other doesn't, launches, bytes, and where the time goes."""
    from autofuse.report import compare as comparing
    from autofuse.report.results import open_results

    first, second = open_results(results_a), open_results(results_b)
    found = comparing.compare(first, second)
    notes = comparing.differences(first, second)
    if as_json:
        options.print_json(
            {
                "a": found.a,
                "b": found.b,
                "same_graph": found.same_graph,
                "verdict": found.verdict,
                "differences": notes,
                "totals": found.totals.to_dict(orient="records"),
                "only_a": found.only_a.to_dict(orient="records"),
                "only_b": found.only_b.to_dict(orient="records"),
                "times": found.times.to_dict(orient="records"),
            }
        )
    else:
        typer.echo(comparing.text(found, notes))
