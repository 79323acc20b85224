"""Pictures of the gallery: small SVG files of one width, readable on light and on dark pages.

Nothing is painted behind them, and every colour has a contrast of at least 3 to white and to black pages alike.
"""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

INK = "#787f88"
BLUE, ORANGE, GREEN, PURPLE, RED = COLOURS = ("#2f81f7", "#d9730d", "#2c974b", "#a371f7", "#e5534b")
STYLE = {
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none", "legend.frameon": False,
    "text.color": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left", "axes.titlesize": 11, "font.size": 10,
    "grid.color": INK, "grid.alpha": 0.25, "axes.grid": True, "axes.grid.axis": "y", "lines.linewidth": 1.6,
    "svg.fonttype": "none", "svg.hashsalt": "metaq", "font.family": "sans-serif",
}  # fmt: skip


@contextlib.contextmanager
def picture(path: Path, title: str, *panels: str) -> Iterator[list[Any]]:
    """Draw a file: the axes of its panels, one above the other with one axis of time, by their titles."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(len(panels), figsize=(9, 1.2 + 2.2 * len(panels)), sharex=True, squeeze=False, layout="constrained")  # fmt: skip
        try:
            figure.suptitle(title, fontweight="bold", x=0.01, ha="left")
            for one, name in zip(axes.flat, panels, strict=True):
                one.set_title(name)
            yield list(axes.flat)
            figure.savefig(path, format="svg", metadata={"Date": None})
        finally:
            plt.close(figure)


def mark(axes: Any, moments: Iterable[tuple[float, str]], colour: str = INK) -> None:
    """Draw a line at each moment, with its name beside it; moments that are close to each other share one. After everything else."""
    first, last = axes.get_xlim()
    lines: list[tuple[float, list[str]]] = []
    for at, name in moments:
        if lines and at - lines[-1][0] < (last - first) / 60:
            lines[-1][1].append(name)
        else:
            lines.append((at, [name]))
    for at, names in lines:
        axes.axvline(at, color=colour, linewidth=1, linestyle=":")
        axes.annotate(", ".join(names), (at, 1), xycoords=("data", "axes fraction"), xytext=(3, -2), textcoords="offset points",
                      color=colour, fontsize=8, rotation=90, va="top")  # fmt: skip
