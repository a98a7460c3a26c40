"""autofuse estimate."""

from __future__ import annotations

import typer

from autofuse.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="estimate")(estimate)


def estimate(
    model: options.Model,
    device: options.Device = "auto",
    shape: options.Shape = None,
    threads: options.Threads = None,
    as_json: options.AsJson = False,
) -> None:
    """Say in seconds, without tuning, what fusion can save: floor, launches, bytes, and the edges that hold it."""
    from autofuse.api.devices import open_device
    from autofuse.importer.importing import import_model
    from autofuse.importer.load import load_model
    from autofuse.report import estimate as estimating
    from autofuse.report import terminal

    graph = import_model(load_model(model), options.shapes(shape))
    opened = open_device(device, threads)
    rates, measured = estimating.known_rates(opened.target, opened.threads)
    found = estimating.estimate(graph, opened.target, opened.threads, calibration=rates if measured else None)
    if as_json:
        options.print_json(estimating.as_json(found))
    else:
        options.paper().print(terminal.estimate(found))
