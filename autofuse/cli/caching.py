"""autofuse cache: compiled kernels, and records of measurements."""

from __future__ import annotations

from typing import Annotated

import typer

from autofuse.cli import options


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Show or empty the cache of compiled kernels.", no_args_is_help=True)
    group.command(name="info")(info)
    group.command(name="prune")(prune)
    group.command(name="clear")(clear)
    app.add_typer(group, name="cache")


def info(as_json: options.AsJson = False) -> None:
    """Where the cache is, and how full."""
    from autofuse.devices.cache import KernelCache
    from autofuse.measure.records import default_path
    from autofuse.report import runs
    from autofuse.report.units import bytes_text

    found = KernelCache().info()
    records = default_path()
    size = records.stat().st_size if records.is_file() else 0
    if as_json:
        options.print_json(
            {
                "kernels": {"folder": found.root, "entries": found.entries, "bytes": found.bytes, "limit": found.limit},
                "records": {"file": records, "bytes": size},
            }
        )
        return
    facts = {
        "compiled kernels": f"{found.entries} in {found.root}",
        "size": f"{bytes_text(found.bytes)} of at most {bytes_text(found.limit)}",
        "measurements": f"{records} ({bytes_text(size)})" if size else f"none yet (they go to {records})",
    }
    options.paper().print(runs.listing("", facts))


def prune(
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep", metavar="SIZE", help="Bytes to keep at most: 500M, 2G.", show_default="the cache's limit"
        ),
    ] = None,
) -> None:
    """Remove the least recently used kernels."""
    from autofuse.api.arguments import bytes_of
    from autofuse.devices.cache import KernelCache
    from autofuse.report.units import bytes_text

    freed = KernelCache().prune(None if keep is None else bytes_of(keep))
    typer.echo(f"freed {bytes_text(freed)}")


def clear() -> None:
    """Remove all compiled kernels. Measurements are kept: they stay true."""
    from autofuse.devices.cache import KernelCache
    from autofuse.report.units import bytes_text

    typer.echo(f"freed {bytes_text(KernelCache().clear())}")
