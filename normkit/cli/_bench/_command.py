"""The command `normkit bench`."""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import _bars, _plan
from ._chart import draw
from ._plan import Filters, Group, Shape, size
from ._report import LEGEND, bar_lines, disturbed, missing, ratio_table
from ._run import BenchError, as_text, machine_name, missing_packages, possible, processors, run
from ._timing import Effort

_EFFORT = Effort(rounds=15, turn_s=0.005, limit_s=5.0)
_QUICK = Effort(rounds=7, turn_s=0.002, limit_s=1.0)
_QUICK_S = 105.0  # two minutes, with what it takes to start and to draw


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Few shapes; under two minutes.")] = False,
    bars: Annotated[
        bool, typer.Option("--bars", help="Only what normkit is to reach, and whether it does.")
    ] = False,
    threads: Annotated[
        str | None, typer.Option(help="Numbers of threads, as 1,2. [default: 1 and all]")
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Only this shape, as 4096x768 (repeatable).")
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only this dtype (repeatable).")] = None,
    op: Annotated[
        list[str] | None, typer.Option(help="Only rms_norm or layer_norm (repeatable).")
    ] = None,
    passes: Annotated[
        list[str] | None,
        typer.Option("--pass", help="Only forward, forward+backward or residual (repeatable)."),
    ] = None,
    framework: Annotated[
        list[str] | None, typer.Option(help="Only torch, jax or numpy (repeatable).")
    ] = None,
    contender: Annotated[
        list[str] | None,
        typer.Option(help="Only normkit and this, as torch.compile (repeatable)."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Turns of each contender.")] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            help="Write the result to this file; in a folder, it is named after the machine.",
        ),
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Write a picture of the ratios.")] = None,
) -> None:
    """Time normkit in turn with what is installed (docs/performance.md).

    Exit status: 0, or 2 if the command cannot run.
    """
    try:
        filters = Filters(
            shapes=[_shape(text) for text in shape] if shape else None,
            dtypes=_known("dtype", dtype, _plan.DTYPES),
            passes=_known("pass", passes, _plan.PASSES),
            frameworks=_known("framework", framework, _plan.FRAMEWORKS),
            ops=_known("op", op, _plan.OPS),
            contenders=_known("contender", contender, _plan.CONTENDERS),
        )
        counts = _threads(threads, quick)
        _check_files(json_file, png)
        groups = _groups(_planned(counts, filters, quick=quick, bars=bars), filters)
        effort = _QUICK if quick else _EFFORT
        result = _run_with_progress(
            groups,
            filters,
            effort._replace(rounds=rounds or effort.rounds),
            _QUICK_S if quick else None,
        )
        if not result["measured"]:
            reasons = "; ".join(f"{name} ({why})" for name, why in result["missing"].items())
            raise BenchError(f"nothing was measured: {reasons}")
        if json_file is not None:
            if json_file.is_dir():
                json_file = json_file / f"{machine_name(result['machine'])}.json"
            json_file.write_text(as_text(result), encoding="utf-8")
        if png is not None:
            draw(result, png)
    except (BenchError, OSError) as error:
        typer.echo(f"normkit bench: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from error
    console = Console(highlight=False)
    if bars:
        for line in bar_lines(result):
            console.print(line, soft_wrap=True)
    else:
        console.print(ratio_table(result, console))
        console.print(f"\n{LEGEND}")
    if (warning := disturbed(result)) is not None:
        console.print(warning, soft_wrap=True)
    for name, reason in missing(result).items():
        console.print(f"not here: {name} ({reason})", markup=False, soft_wrap=True)


def _check_files(*paths: Path | None) -> None:
    """Before minutes are spent on a result that cannot be written."""
    for path in paths:
        if path is not None and not path.absolute().parent.is_dir():
            raise BenchError(f"there is no folder {path.absolute().parent} for {path.name}")
    if paths[-1] is not None and find_spec("matplotlib") is None:
        raise BenchError("--png needs matplotlib; run: pip install 'normkit[cli]'")


def _known(kind: str, wanted: Sequence[str] | None, known: Sequence[str]) -> Sequence[str] | None:
    for name in wanted or ():
        if name not in known:
            raise BenchError(f"there is no {kind} {name}; there are {', '.join(known)}")
    return wanted or None


def _shape(text: str) -> Shape:
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", text):
        raise BenchError(f"a shape is rows x width, as 4096x768; got {text}")
    rows, _, width = text.partition("x")
    return int(rows), int(width)


def _threads(text: str | None, quick: bool) -> list[int]:
    here = len(processors())
    if text is None:
        return [here] if quick else sorted({1, here})
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise BenchError(f"--threads is a list of numbers, as 1,2; got {text}")
    counts = sorted({int(part) for part in text.split(",")})
    if counts[-1] > here:
        raise BenchError(f"--threads {counts[-1]} is more than the {here} processors here")
    return counts


def _planned(counts: Sequence[int], filters: Filters, *, quick: bool, bars: bool) -> list[Group]:
    if bars:
        wanted = [b for b in _bars.BARS if filters.wants(b.ours) and filters.wants(b.theirs)]
        return _bars.groups(counts, wanted)
    groups = list(_plan.quick(counts) if quick else _plan.full(counts))
    own = [s for s in filters.shapes or () if s not in _plan.SHAPES]
    own_groups = {g._replace(shape=shape, compiled=False): None for shape in own for g in groups}
    return [*groups, *own_groups]


def _groups(planned: Sequence[Group], filters: Filters) -> list[Group]:
    groups = [group for group in planned if filters.take(group)]
    if not groups:
        raise BenchError("nothing is left to measure; see normkit bench --help for the choices")
    found = [group for group in groups if possible(group.framework)]
    if not found:
        raise BenchError("; ".join(f"{n} is {why}" for n, why in missing_packages().items()))
    return found


def _run_with_progress(
    groups: list[Group], filters: Filters, effort: Effort, budget_s: float | None
) -> dict[str, Any]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    terminal = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not terminal) as progress:
        weighed = _plan.weighed(groups, filters.shapes)
        task = progress.add_task("timing", total=len(groups) + len(weighed))

        def done(group: Group) -> None:
            label = f"{group.framework} {size(group.shape)} {group.dtype}"
            progress.update(task, advance=1, description=label)

        return run(groups, weighed, filters, effort, done, budget_s)
