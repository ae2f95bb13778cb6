"""Draws the pictures of the course into docs/pictures, from what normkit computes."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from normkit.numpy import layer_norm, rms_norm

matplotlib.use("agg")
from matplotlib import pyplot

FOLDER = Path(__file__).parent / "pictures"

# Three numbers a row, so that a row is a point in space: off the plane of zero sum, and of other
# lengths than sqrt(3).
ROWS = np.array([[2.6, 1.2, 1.6], [0.5, 2.5, -0.5], [0.2, 0.4, 1.0]])
_COLOURS = ("tab:blue", "tab:orange", "tab:green")
_ONES = np.ones(3) / np.sqrt(3)


def geometry(path: Path) -> None:
    """Left RMSNorm: along the ray to the sphere. Right LayerNorm: to the plane, then the circle."""
    figure = pyplot.figure(figsize=(10, 4.6))
    left, right = (figure.add_subplot(1, 2, i, projection="3d") for i in (1, 2))
    for axes in (left, right):
        _sphere(axes)
        axes.view_init(elev=18, azim=-15)
        axes.set_box_aspect((1, 1, 1), zoom=1.25)
        axes.set(xlim=(-2, 2), ylim=(-2, 2), zlim=(-2, 2), xticks=(), yticks=(), zticks=())
        axes.set_axis_off()
    left.set_title("RMSNorm: along the row to the sphere")
    right.set_title("LayerNorm: to the plane of zero sum, then the sphere")

    _plane(right)
    centred = ROWS - ROWS.mean(-1, keepdims=True)
    for x, d, colour in zip(ROWS, centred, _COLOURS, strict=True):
        y = rms_norm(x, eps=0.0)
        left.plot(*np.stack([0 * x, y]).T, color=colour, lw=1)
        left.plot(*np.stack([x, y]).T, color=colour, lw=1, ls=":")
        _points(left, x, y, colour)
        y = layer_norm(x, eps=0.0)
        right.plot(*np.stack([x, d]).T, color=colour, lw=1, ls=":")
        right.plot(*np.stack([0 * x, max(d, y, key=np.linalg.norm)]).T, color=colour, lw=1)
        right.scatter(*d, color=colour, marker="s", s=22)
        _points(right, x, y, colour)
    handles = [
        pyplot.Line2D([], [], color="grey", marker=marker, mfc=face, ls="")
        for marker, face in (("o", "none"), ("s", "grey"), ("o", "grey"))
    ]
    figure.legend(handles, ["x", "x - mean(x)", "result"], loc="lower center", ncols=3)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _points(axes: Any, x: np.ndarray, y: np.ndarray, colour: str) -> None:
    axes.scatter(*x, facecolors="none", edgecolors=colour, s=40)
    axes.scatter(*y, color=colour, s=40)


def _sphere(axes: Any) -> None:
    """Of radius sqrt(3)."""
    around, down = np.mgrid[0 : 2 * np.pi : 49j, 0 : np.pi : 25j]
    ball = np.sqrt(3) * np.stack(
        [np.cos(around) * np.sin(down), np.sin(around) * np.sin(down), np.cos(down)]
    )
    axes.plot_surface(*ball, color="grey", alpha=0.12, lw=0)


def _plane(axes: Any) -> None:
    """Of zero sum, with the circle in which it cuts the sphere."""
    u = np.array([1.0, -1, 0]) / np.sqrt(2)
    v = np.cross(_ONES, u)
    a, b = np.mgrid[-2.1:2.1:2j, -2.1:2.1:2j]
    plane = u[:, None, None] * a + v[:, None, None] * b
    axes.plot_surface(*plane, color="tab:cyan", alpha=0.15, lw=0)
    turn = np.linspace(0, 2 * np.pi, 100)
    circle = np.sqrt(3) * (u[:, None] * np.cos(turn) + v[:, None] * np.sin(turn))
    axes.plot(*circle, color="tab:cyan", lw=1.2)
    axes.quiver(0, 0, 0, *(1.6 * _ONES), color="grey", lw=0.8, arrow_length_ratio=0.1)
    axes.text(*(1.6 * _ONES + (0, 0, 0.3)), "(1, 1, 1)", fontsize=8, color="grey")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    geometry(FOLDER / "geometry.png")
