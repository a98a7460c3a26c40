"""autofuse tune."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autofuse.cli import options
from autofuse.cli.progress import shown_progress

if TYPE_CHECKING:
    from autofuse.api.tuning import TuneResult


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="tune")(tune)


def tune(
    model: options.Model,
    device: options.Device = "auto",
    shape: options.Shape = None,
    inputs: options.Inputs = None,
    budget: Annotated[str, typer.Option("--budget", metavar="TIME", help="How long to search: 90s, 5m, 1h.")] = "5m",
    accuracy: Annotated[
        str,
        typer.Option(
            "--accuracy",
            metavar="LEVEL",
            help="exact (no tolerant algorithms), default (Winograd and the like), fast (lower precision too).",
        ),
    ] = "default",
    threads: options.Threads = None,
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="Where the result folder goes.")] = Path(
        "results"
    ),
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage", metavar="URL", help="Keep Optuna's studies there (sqlite:///studies.db).", show_default=False
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline", metavar="NAME", help="Measure a peer in the same rounds: onnxruntime.", show_default=False
        ),
    ] = None,
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
    sampler: Annotated[
        str, typer.Option("--sampler", hidden=True, help="exact, tpe, nsga2, random or brute-force.")
    ] = "exact",
    trials: Annotated[
        int | None, typer.Option("--trials", hidden=True, min=1, help="At most so many plans, whatever the budget.")
    ] = None,
    space: Annotated[
        Path | None,
        typer.Option("--space", hidden=True, help="A folder of search spaces merged over the shipped ones."),
    ] = None,
    rtol: Annotated[
        float | None,
        typer.Option("--rtol", hidden=True, min=0.0, help="Tolerance relative to the output's largest magnitude."),
    ] = None,
    atol: Annotated[float | None, typer.Option("--atol", hidden=True, min=0.0, help="Absolute tolerance.")] = None,
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            hidden=True,
            metavar="LIST",
            help="latency, memory or error; latency,memory or latency,error for a front of trade-offs (the first decides).",
        ),
    ] = "latency",
    max_memory: Annotated[
        str | None,
        typer.Option("--max-memory", hidden=True, metavar="SIZE", help="Bound the bytes of intermediates: 64M, 1G."),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            "--replay",
            hidden=True,
            metavar="RESULTS",
            help="Search again among the kernels that a result folder or a recording holds; nothing is run.",
        ),
    ] = None,
    help_advanced: options.HelpAdvanced = False,
) -> None:
    """Find the fastest way to run a model, and save the plan with all that was measured."""
    del help_advanced
    import autofuse
    from autofuse.api.arguments import read_inputs, seconds_of
    from autofuse.errors import UsageError
    from autofuse.importer.load import load_model

    seconds = seconds_of(budget)
    command = shlex.join(["autofuse", *sys.argv[1:]])
    if replay is not None:
        fixed: dict[str, object] = {
            "--device": device != "auto",
            "--threads": threads,
            "--shape": shape,
            "--inputs": inputs,
        }
        fixed |= {"--baseline": baseline, "--storage": storage, "--space": space, "--rtol": rtol, "--atol": atol}
        fixed |= {
            "--objective": objective != "latency",
            "--max-memory": max_memory,
            "--accuracy": accuracy != "default",
        }
        given_too = [name for name, value in fixed.items() if value]
        if given_too:
            raise UsageError(f"--replay takes all but the search from the results: leave out {', '.join(given_too)}")
        with shown_progress(options.people(), seconds) as progress:
            replayed = autofuse.replay(
                replay, model, seconds, output, seed, sampler=sampler, trials=trials, progress=progress, command=command
            )
        _show(replayed, as_json)
        return
    loaded = load_model(model)
    given = None if inputs is None else read_inputs(inputs, options.input_names(loaded))
    try:
        with shown_progress(options.people(), seconds) as progress:
            result = autofuse.tune(
                model,
                device=device,
                budget=seconds,
                shapes=options.shapes(shape),
                inputs=given,
                output=output,
                accuracy=accuracy,
                threads=threads,
                seed=seed,
                storage=storage,
                space=space,
                trials=trials,
                sampler=sampler,
                rtol=rtol,
                atol=atol,
                baseline=baseline,
                objective=objective,
                max_memory=max_memory,
                progress=progress,
                command=command,
            )
    except KeyboardInterrupt:
        options.say("interrupted before there was a plan; what was measured serves the next tune")
        raise typer.Exit(130) from None
    _show(result, as_json)


def _show(result: TuneResult, as_json: bool) -> None:
    from autofuse.report import summary

    results = result.results
    if as_json:
        options.print_json(summary.as_json(results))
    else:
        options.say(summary.text(results))
    options.say(f"\nresults: {result.folder}")
    if result.interrupted:
        options.say("interrupted; the best so far is kept, and what was measured serves the next tune")
        raise typer.Exit(130)
