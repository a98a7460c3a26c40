"""autofuse report, explain and compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autofuse.cli import options
from autofuse.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from autofuse.report.leftovers import Leftovers

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
    fuse: Annotated[bool, typer.Option("--fuse", help="Price one kernel for A (to B): results only.")] = False,
    split: Annotated[bool, typer.Option("--split", help="Price the opposite: not all in one kernel.")] = False,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="Where the tuned model lies now.", show_default="where it lay"),
    ] = None,
    cleaned: Annotated[
        Path | None,
        typer.Option(
            "--cleaned",
            metavar="OUT.onnx",
            help="Write the model without an export's leftovers, once its numbers are verified.",
            show_default=False,
        ),
    ] = None,
    device: options.Device = "auto",
    shape: options.Shape = None,
    threads: options.Threads = None,
    as_json: options.AsJson = False,
) -> None:
    """Say why edges were or weren't fused, what they and the other choice cost, and which nodes an export left behind.

    For one edge of a result (or with --fuse, --split) the partition is searched again with that choice fixed. For a model without results
    the rules alone are asked.
    """
    names = [n for n in (a, b) if n is not None]
    if fuse and split:
        raise UsageError("--fuse and --split are opposites: give one of them")
    if (fuse or split) and not names:
        raise UsageError("--fuse and --split need an edge, or two nodes or values")
    if _is_model(subject):
        if fuse or split or model:
            raise UsageError("--fuse, --split and --model belong to results: tune the model first")
        _explain_model(subject, names, cleaned, device, shape, threads, as_json)
    else:
        if shape:
            raise UsageError("--shape belongs to a model; results have their shapes")
        _explain_results(Path(subject), names, "fuse" if fuse else "split" if split else "", model, cleaned, as_json)


def _is_model(subject: str) -> bool:
    path = Path(subject)
    return subject.startswith("sample:") or path.suffix == ".onnx" or (path.is_file() and path.suffix != ".json")


def _explain_model(
    subject: str,
    names: list[str],
    cleaned: Path | None,
    device: str,
    shape: list[str] | None,
    threads: int | None,
    as_json: bool,
) -> None:
    from autofuse.api.cleaning import write_cleaned
    from autofuse.report import explain as explaining
    from autofuse.report import leftovers as left

    bound = options.shapes(shape)
    edges = _edges_of_model(subject, device, shape, threads)
    shown = explaining.chosen(edges, names)
    found = None if names else _leftovers(subject, bound, device, threads)
    written = None if cleaned is None else write_cleaned(subject, cleaned, bound)
    if as_json:
        options.print_json(
            {
                "edges": shown.to_dict(orient="records"),
                "leftovers": None if found is None else left.as_json(found),
                "cleaned": None if written is None else written.as_json(),
            }
        )
        return
    typer.echo(explaining.explain_text(edges, names))
    if found is not None:
        typer.echo(f"\n{left.text(found)}")
    if written is not None:
        options.say(str(written))


def _explain_results(
    path: Path, names: list[str], wish: str, model: str | None, cleaned: Path | None, as_json: bool
) -> None:
    from autofuse.api.cleaning import write_cleaned
    from autofuse.errors import AutofuseError
    from autofuse.report import explain as explaining
    from autofuse.report import leftovers as left
    from autofuse.report.results import open_results
    from autofuse.search.exact.reasons import FUSED

    results = open_results(path)
    edges = results.verdicts
    shown = explaining.chosen(edges, names)
    answer = found = None
    asked = wish or ("" if len(shown) != 1 or not names else "split" if shown.iloc[0]["state"] == FUSED else "fuse")
    try:
        if asked:
            fuse, split = (names, []) if asked == "fuse" else ([], names)
            answer = results.what_if(fuse, split, model)
        elif not names:
            found = left.of_results(results, model)
    except AutofuseError as error:
        if wish:
            raise
        options.say(f"no more can be said: {error}")
    written = None
    if cleaned is not None:
        shapes = {k: tuple(v) for k, v in results.run["shapes"].items()}
        written = write_cleaned(model or str(results.run["model"]), cleaned, shapes)
    if as_json:
        options.print_json(
            {
                "edges": shown.to_dict(orient="records"),
                "what_if": None if answer is None else answer.as_json(),
                "leftovers": None if found is None else left.as_json(found),
                "cleaned": None if written is None else written.as_json(),
            }
        )
        return
    typer.echo(explaining.explain_text(edges, names))
    if answer is not None:
        typer.echo(f"\n{answer.detail()}")
    if found is not None:
        typer.echo(f"\n{left.text(found)}")
    if written is not None:
        options.say(str(written))


def _leftovers(subject: str, bound: dict[str, tuple[int, ...]], device: str, threads: int | None) -> Leftovers:
    from autofuse.api.devices import open_device
    from autofuse.importer.load import load_model
    from autofuse.report.estimate import known_rates
    from autofuse.report.leftovers import of_model

    opened = open_device(device, threads)
    rates, measured = known_rates(opened.target, opened.threads)
    return of_model(load_model(subject), bound, opened.target, opened.threads, rates, measured)


def _edges_of_model(model: str, device: str, shape: list[str] | None, threads: int | None) -> pd.DataFrame:
    from autofuse.api.devices import open_device
    from autofuse.importer.importing import import_model
    from autofuse.importer.load import load_model
    from autofuse.report.estimate import estimate, known_rates

    graph = import_model(load_model(model), options.shapes(shape))
    opened = open_device(device, threads)
    rates, measured = known_rates(opened.target, opened.threads)
    return estimate(graph, opened.target, opened.threads, calibration=rates if measured else None).all_edges


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
                "same_weights": found.same_weights,
                "structures": list(found.structures),
                "weights": list(found.weights),
                "verdict": found.verdict,
                "differences": notes,
                "totals": found.totals.to_dict(orient="records"),
                "only_a": found.only_a.to_dict(orient="records"),
                "only_b": found.only_b.to_dict(orient="records"),
                "times": found.times.to_dict(orient="records"),
                "parts": found.parts.to_dict(orient="records"),
            }
        )
    else:
        typer.echo(comparing.text(found, notes))
