"""A picture of a report: each row beside its peers, and against what it must reach and its goal."""

import sys
from pathlib import Path
from typing import Any

INK, QUIET, RULE = "#1f2328", "#59636e", "#d1d9e0"
COLORS = {"goal": "#1a7f37", "must": "#0969da", "below": "#cf222e", "–": "#59636e"}
WORDS = {
    "goal": "reaches its goal",
    "must": "reaches what it must",
    "below": "below what it must",
    "–": "no bound could be judged",
}
PEERS = {"nats": ("NATS", "D"), "redis": ("Redis", "o"), "rocketmq": ("RocketMQ", "s")}
LEAST, MOST = 1 / 20, 20.0


def draw(report: dict[str, Any], path: Path) -> None:
    """Write the picture, or say why not: matplotlib is the extra `plots`."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D
    except ImportError:
        print("warning: no picture: matplotlib is not installed (the extra `plots`)", file=sys.stderr)
        return
    rows = [row for row in report["rows"] if row["median"] > 0]
    if not rows:
        return
    figure = Figure(figsize=(13, 2.2 + 0.34 * len(rows)), facecolor="white")
    FigureCanvasAgg(figure)
    height = figure.get_figheight()
    axes = figure.add_axes((0.36, 0.75 / height, 0.33, 1 - 2.15 / height))
    axes.set_xscale("log", base=2)
    axes.set_xlim(LEAST, MOST)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.axvline(1, color=INK, linewidth=1)
    for place, row in enumerate(rows):
        _row(axes, place, row)
    ticks = [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16]
    axes.set_xticks(ticks, [f"1/{round(1 / tick)}" if tick < 1 else f"{tick:.0f}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(rows)), [_short(row["work"]) for row in rows], fontsize=9)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.tick_params(axis="x", labelcolor=QUIET, colors=QUIET)
    axes.grid(axis="x", color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("times better than what it must reach (further right is better)", color=QUIET, fontsize=9)
    _heading(figure, report, height)
    marks = [Line2D([], [], color=color, linewidth=6, label=WORDS[word]) for word, color in COLORS.items()]
    marks += [
        Line2D([], [], color=INK, marker="|", linestyle="", markersize=11, label="goal"),
        Line2D([], [], color=INK, marker="s", linestyle="", markerfacecolor="white", label="peer of the row"),
        *(Line2D([], [], color=INK, marker=mark, linestyle="", markerfacecolor="white", label=name) for name, mark in PEERS.values()),
    ]  # fmt: skip
    figure.legend(
        handles=marks, loc="upper left", bbox_to_anchor=(0.012, 1 - 0.72 / height), ncols=8, frameon=False, fontsize=8.5,
        labelcolor=INK, handletextpad=0.5, columnspacing=1.4,
    )  # fmt: skip
    # Figures of many peers go beyond the right border.
    figure.savefig(path, dpi=110, bbox_inches="tight", pad_inches=0.15)


def _heading(figure: Any, report: dict[str, Any], height: float) -> None:
    where = report["machine"]
    figure.text(0.015, 1 - 0.35 / height, "Every row beside its peers", fontsize=15, color=INK, weight="bold")
    text = f"{where['cpu']}, {where['cores']} cores, {where['disk']}, commit {where['commit']}, load {where['load']:.1f} at the start; medians"
    figure.text(0.015, 1 - 0.62 / height, text, fontsize=9, color=QUIET)
    figure.text(0.70, 1 - 1.3 / height, "now                (must / goal)  peers", fontsize=9, color=QUIET)


def _row(axes: Any, place: int, row: dict[str, Any]) -> None:
    peer = row.get("beside") if row["times_peer"] else 1.0
    ratio = row.get("ratio") if row["times_peer"] else None  # of each pair, which says more than that of two medians
    now = _within(_better(row, row["median"], peer) if ratio is None else _better(row, ratio, 1.0))
    color = COLORS[row["verdict"]]
    if peer:
        axes.barh(place, now - 1, left=1, height=0.62, color=color, alpha=0.85, linewidth=0)
        axes.plot(now, place, "o", color=color, markersize=6, markeredgewidth=0)
        if row["verdict"] != "–" or row["must"]:
            axes.plot(
                _within(_better(row, row["goal"] * peer, peer)),
                place,
                "|",
                color=INK,
                markersize=12,
                markeredgewidth=1.6,
            )
        if row.get("beside"):
            mark = _within(_better(row, row["beside"], peer))
            axes.plot(mark, place, "s", color=INK, markerfacecolor="white", markersize=5)
        for key, (_, shape) in PEERS.items():
            if row.get(key):
                axes.plot(
                    _within(_better(row, row[key], peer)),
                    place,
                    shape,
                    color=INK,
                    markerfacecolor="white",
                    markersize=5,
                )
    times = " ×" if row["times_peer"] else ""
    bounds = f"({_number(row['must'])} / {_number(row['goal'])}{times})"
    beside = "  ".join(
        f"{name} {_number(row[key])}"
        for name, key in (
            (row["peer"].split(",")[0], "beside"),
            ("NATS", "nats"),
            ("Redis", "redis"),
            ("RocketMQ", "rocketmq"),
        )
        if row.get(key)
    )
    axes.text(
        MOST * 1.12, place, f"{_number(row['median'])} {row['unit']}", fontsize=9, color=INK, weight="bold", va="center"
    )
    axes.text(MOST * 5.2, place, f"{bounds}  {beside}", fontsize=8, color=QUIET, va="center")


def _better(row: dict[str, Any], value: float, peer: float | None) -> float:
    """How many times better `value` is than what the row must reach."""
    must = row["must"] * (peer or 1.0)
    return must / value if row["lower_is_better"] else value / must


def _within(value: float) -> float:
    return min(MOST * 0.96, max(LEAST * 1.05, value))


def _short(work: str) -> str:
    return work if len(work) <= 68 else work[:66] + " …"


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


if __name__ == "__main__":
    import json

    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
