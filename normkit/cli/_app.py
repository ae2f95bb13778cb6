"""The command line, by typer and rich."""

import importlib
import json
import platform
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import normkit
from normkit.cli._bench._command import bench
from normkit.cli._census import build_model
from normkit.cli._check import DTYPES, Row, check_backends
from normkit.cli._identify import NotFoundError, load, named_values, values
from normkit.cli._info import info_lines
from normkit.cli.backends import Backend, find_backends

app = typer.Typer(
    help="RMSNorm and LayerNorm with the same numbers in every framework.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(bench)


_Args = Annotated[
    list[str] | None, typer.Option(help="Constructor argument, as Python (repeatable).")
]
_Options = Annotated[
    list[str] | None, typer.Option(help="Constructor argument name=value (repeatable).")
]


@app.command()
def info() -> None:
    """List versions, backends, devices and kernels, and why one is missing."""
    for line in info_lines():
        print(line)


@app.command()
def check(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON (docs/check.md).")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write the table to this file too.")] = None,
    backend: Annotated[
        list[str] | None, typer.Option(help="Only this backend (repeatable), as torch or jax:gpu.")
    ] = None,
) -> None:
    """Compare every backend here with the exact result, and bit by bit with NumPy.

    Exit status: 0 if all rows are ok, 1 if one is not, 2 if the command cannot run.
    """
    found, missing = find_backends()
    chosen = _choose(found, missing, backend or [])
    rows = _check_with_progress(chosen)
    if as_json:
        print(json.dumps(report(rows, missing), indent=2))
    else:
        console = Console(record=html is not None)
        console.print(_table(rows, console))
        console.print(_summary(rows, missing), markup=False, highlight=False)
        if html is not None:
            console.save_html(str(html))
    raise typer.Exit(0 if all(row.ok for row in rows) else 1)


@app.command()
def identify(
    thing: Annotated[str, typer.Argument(metavar="MODULE:OBJECT", help="Or FILE.py:OBJECT.")],
    arg: _Args = None,
    option: _Options = None,
    width: Annotated[int | None, typer.Option(help="Elements of a row.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only rms_norm or layer_norm.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON (docs/identify.md).")
    ] = False,
) -> None:
    """Name the convention that a norm follows, and the first input where others depart.

    Exit status: 0 if a preset fits, 1 if none does, 2 if the command cannot run.
    """
    try:
        found = normkit.identify(
            load(thing),
            args=values(arg) if arg else None,
            options=named_values(option or []),
            width=width,
            kind=kind,
        )
    except Exception as error:  # the constructor's own errors are of any kind
        raise _failed("identify", thing, error) from error
    print(json.dumps(found.as_dict(), indent=2) if as_json else found)
    raise typer.Exit(0 if found.presets else 1)


@app.command()
def census(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="MODULE:CLASS, FILE.py:OBJECT, or the config.json of a transformers model.",
        ),
    ],
    arg: _Args = None,
    option: _Options = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """List the norms of a torch model, each with its convention, width and eps.

    Exit status: 0 if they agree, 1 if there is a warning, 2 if the command cannot run.
    """
    try:
        built = build_model(model, values(arg or []), named_values(option or []))
        found = importlib.import_module("normkit.torch").census(built)
    except Exception as error:  # the constructor's own errors are of any kind
        raise _failed("census", model, error) from error
    print(json.dumps(found.as_dict(), indent=2) if as_json else found)
    raise typer.Exit(1 if found.warnings else 0)


def _failed(command: str, thing: str, error: Exception) -> typer.Exit:
    """One line on the error stream, and status 2."""
    kind = "" if isinstance(error, NotFoundError) else f"{type(error).__name__}: "
    text = " ".join(f"{kind}{error}".split())
    typer.echo(f"normkit {command}: {thing}: {text}", err=True)
    return typer.Exit(2)


def report(rows: list[Row], missing: dict[str, str]) -> dict[str, Any]:
    """The report as data; normkit/data/check.schema.json is its JSON Schema."""
    return {
        "schema": "normkit-check-1",
        "normkit": normkit.__version__,
        "platform": platform.platform(),
        "ok": all(row.ok for row in rows),
        "rows": [{**row._asdict(), **_finite(row)} for row in rows],
        "missing": missing,
    }


def _finite(row: Row) -> dict[str, float | None]:
    """An infinite error (NaN or infinity in a wrong place) is null in JSON, which has no infinity."""
    found = {"worst_ulp_real": row.worst_ulp_real, "worst_ulp_hard": row.worst_ulp_hard}
    return {key: value if value < float("inf") else None for key, value in found.items()}


def _choose(found: list[Backend], missing: dict[str, str], wanted: list[str]) -> list[Backend]:
    """NumPy, which the others are compared with, and the wanted backends."""
    for label in wanted:
        if not any(label in (b.framework, b.label) for b in found):
            reasons = [why for name, why in missing.items() if label in (name, name.split(":")[0])]
            known = ", ".join(b.label for b in found)
            why = reasons[0] if reasons else "no such backend"
            typer.echo(f"normkit check: {label} is not here: {why}; here are {known}", err=True)
            raise typer.Exit(2)
    if not wanted:
        return found
    return [b for b in found if b.framework == "numpy" or {b.framework, b.label} & set(wanted)]


def _check_with_progress(backends: list[Backend]) -> list[Row]:
    rows = []
    total = len(backends) * len(DTYPES)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("checking", total=total)
        for row in check_backends(backends):
            rows.append(row)
            progress.update(task, advance=1, description=f"{row.framework} {row.dtype}")
    order = [b.label for b in backends]
    return sorted(rows, key=lambda row: order.index(f"{row.framework}:{row.device}"))


def _table(rows: list[Row], console: Console) -> Table:
    table = Table(box=None, pad_edge=False) if not console.is_terminal else Table()
    for heading in ("backend", "device", "dtype"):
        table.add_column(heading)
    for heading in ("worst ULP, real", "worst ULP, hard", "bits differing", "of"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in rows:
        table.add_row(
            row.framework,
            row.device,
            row.dtype,
            f"{row.worst_ulp_real:.5f}",
            f"{row.worst_ulp_hard:.5f}",
            str(row.bits_differ),
            str(row.elements),
            "[green]ok[/]" if row.ok else "[red]MISS[/]",
        )
    return table


_LEGEND = (
    "real: the worked example and five layers of two trained models; hard: huge, tiny, off-centre, "
    "lopsided and special rows. ULP: of the element (0.5 is correct rounding), for float64 of the "
    "row's largest element. Bits: compared with numpy; equal bits are promised for all dtypes but "
    "float64."
)


def _summary(rows: list[Row], missing: dict[str, str]) -> str:
    lines = ["", _LEGEND, ""]
    lines += [f"not here: {label} ({reason})" for label, reason in missing.items()]
    for row in rows:
        if not row.ok:
            lines.append(
                f"MISS: {row.framework}:{row.device} {row.dtype}: worst on {row.worst_case}"
            )
    return "\n".join(lines)
