"""The ratios of a result as a picture: above the line normkit is faster, below it the other is."""

import hashlib
import json
from pathlib import Path
from typing import Any

from ._plan import DTYPES, FRAMEWORKS, OPS, PASSES, size
from ._ratios import pairs, ratio

# Okabe and Ito's colours, which also the colour-blind tell apart; copies are grey.
_COLOURS = {
    "torch": "#D55E00",
    "torch.compile": "#0072B2",
    "flax": "#D55E00",
    "equinox": "#0072B2",
    "keras": "#009E73",
    "numpy": "#D55E00",
    "clone": "#777777",
    "copy": "#777777",
}
# A copy costs both norms the same.
_SERIES = {(name, op) for name in _COLOURS for op in OPS} - {
    (name, "layer_norm") for name in ("clone", "copy")
}
_MARKERS = {"rms_norm": "o", "layer_norm": "s"}
_INK = "#333333"


def fingerprint(result: dict[str, Any]) -> str:
    """Stands in the picture's metadata, so that a test can tell what it was drawn from."""
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the picture to a PNG file. Only the largest number of threads is shown."""
    from matplotlib.figure import Figure

    threads = max(entry["threads"] for entry in result["measured"])
    panels = _panels(result, threads)
    rows = list(dict.fromkeys((framework, passes) for framework, passes, _ in panels))
    dtypes = [dtype for dtype in DTYPES if any(panel[2] == dtype for panel in panels)]
    figure = Figure(figsize=(1.5 + 4.2 * len(dtypes), 1.6 + 3.0 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), len(dtypes), squeeze=False, sharey="row")
    for i, (framework, passes) in enumerate(rows):
        row = [panels.get((framework, passes, dtype), {}) for dtype in dtypes]
        axes[i, 0].set_ylim(*_limits(row))
        for j, dtype in enumerate(dtypes):
            _draw_panel(axes[i, j], row[j])
            axes[i, j].set_title(f"{framework}, {passes}, {dtype}", fontsize=9, loc="left")
        axes[i, 0].set_ylabel("times as fast as the other", fontsize=8)
    machine = result["machine"]
    figure.suptitle(
        f"normkit beside what is installed, {machine['processor']}, threads: {threads}\n"
        "above the line normkit is faster; bars: quartiles of the rounds",
        fontsize=11,
        x=0.01,
        ha="left",
    )
    _legend(figure, panels)
    figure.savefig(path, format="png", dpi=80, metadata={"Source": fingerprint(result)})


_Points = dict[str, Any]
_Panels = dict[tuple[str, str, str], dict[tuple[str, str], _Points]]


def _panels(result: dict[str, Any], threads: int) -> _Panels:
    """Panel (framework, pass, dtype), in it series (other, op), in it a ratio for each shape."""
    found: _Panels = {}
    for (framework, passes, ours, theirs), entries in pairs(result).items():
        other, op = theirs.partition(" ")[0], ours.partition(" ")[2]
        for entry in entries:
            if entry["threads"] == threads and (other, op) in _SERIES:
                panel = found.setdefault((framework, passes, entry["dtype"]), {})
                points = panel.setdefault((other, op), {})
                points[size(entry["shape"])] = ratio(entry, theirs, ours)
    order = sorted(found, key=lambda p: (FRAMEWORKS.index(p[0]), PASSES.index(p[1])))
    return {key: found[key] for key in order}


def _limits(row: list[dict[tuple[str, str], _Points]]) -> tuple[float, float]:
    """What holds every ratio of a row of panels, and the line at 1."""
    found = [r for panel in row for points in panel.values() for r in points.values()]
    low, high = min(r.low for r in found), max(r.high for r in found)
    return min(low, 0.8) / 1.2, max(high, 1.25) * 1.2


def _draw_panel(axes: Any, series: dict[tuple[str, str], _Points]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    shapes = list(dict.fromkeys(shape for points in series.values() for shape in points))
    for k, ((other, op), points) in enumerate(series.items()):
        offset = (k - (len(series) - 1) / 2) * 0.6 / max(len(series), 1)
        where = [shapes.index(shape) + offset for shape in points]
        middle = [r.middle for r in points.values()]
        spread = [
            [r.middle - r.low for r in points.values()],
            [r.high - r.middle for r in points.values()],
        ]
        axes.errorbar(
            where,
            middle,
            yerr=spread,
            fmt=_MARKERS[op],
            color=_COLOURS[other],
            markerfacecolor="white" if op == "layer_norm" else _COLOURS[other],
            markersize=4.5,
            elinewidth=1,
        )
    axes.set_yscale("log")
    axes.axhspan(1e-9, 1, color="#000000", alpha=0.05, zorder=0)
    axes.axhline(1, color=_INK, linewidth=1)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xticks(range(len(shapes)), shapes, rotation=40, ha="right", fontsize=7)
    axes.tick_params(axis="y", labelsize=7)
    axes.grid(axis="y", which="major", color="#dddddd", linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(figure: Any, panels: _Panels) -> None:
    from matplotlib.lines import Line2D

    names = dict.fromkeys(
        (framework, other, op) for (framework, _, _), s in panels.items() for other, op in s
    )
    handles = [
        Line2D(
            [],
            [],
            linestyle="none",
            marker=_MARKERS[op],
            color=_COLOURS[other],
            markerfacecolor="white" if op == "layer_norm" else _COLOURS[other],
            label=f"{framework}: {other}" if other in ("clone", "copy") else f"{other} {op}",
        )
        for framework, other, op in names
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=4, fontsize=8, frameon=False)
