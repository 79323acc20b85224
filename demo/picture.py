"""The plot: a year of departures, hour by hour, one strip per airport, and the ten worst hours."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import TwoSlopeNorm

from demo.delays import AirportHour

NEW_YORK = ZoneInfo("America/New_York")
AIRPORTS = {"EWR": "Newark", "JFK": "John F. Kennedy", "LGA": "LaGuardia"}
FIRST_HOUR, LAST_HOUR = 5, 23
SCALE_MIN, SCALE_MAX = -15, 120


def local(hour: datetime) -> datetime:
    return hour.astimezone(NEW_YORK)


def draw(windows: Sequence[AirportHour], worst: Sequence[AirportHour], flights: int, path: Path) -> None:
    """Write the PNG."""
    plt.rcParams.update({"font.size": 9, "axes.titlesize": 10, "font.family": "DejaVu Sans"})
    figure = plt.figure(figsize=(14, 9.5), dpi=110, layout="constrained")
    figure.get_layout_engine().set(h_pad=0.08)
    grid = figure.add_gridspec(4, 1, height_ratios=[1, 1, 1, 1.25])
    figure.suptitle(
        f"Departure delays out of New York, 2013: {flights:,} flights by airport and hour of scheduled departure",
        fontsize=13, fontweight="bold",
    )  # fmt: skip
    colours = plt.get_cmap("RdYlBu_r").copy()
    colours.set_bad("#ececec")
    norm = TwoSlopeNorm(vcenter=0, vmin=SCALE_MIN, vmax=SCALE_MAX)
    strips = []
    for row, (code, name) in enumerate(AIRPORTS.items()):
        axes = figure.add_subplot(grid[row])
        strips.append(axes)
        image = axes.imshow(
            _strip(windows, code), aspect="auto", origin="lower", cmap=colours, norm=norm, interpolation="nearest",
            extent=(0.5, 365.5, FIRST_HOUR - 0.5, LAST_HOUR + 0.5),
        )  # fmt: skip
        axes.set_title(f"{code}  {name}", loc="left", fontweight="bold")
        axes.set_yticks([6, 10, 14, 18, 22], [f"{hour}:00" for hour in (6, 10, 14, 18, 22)])
        _months(axes)
        _mark(axes, [(rank, hour) for rank, hour in enumerate(worst, 1) if hour.origin == code])
    bar = figure.colorbar(image, ax=strips, pad=0.01, extend="both", aspect=40)
    bar.set_label("mean delay, minutes (grey: no departure)")
    bar.ax.set_yscale("linear")  # minutes take their own room, not the half that the norm gives the early ones
    bar.set_ticks([-15, 0, 30, 60, 90, 120])
    _bars(figure.add_subplot(grid[3]), worst)
    figure.savefig(path)
    plt.close(figure)


def _strip(windows: Sequence[AirportHour], origin: str) -> np.ma.MaskedArray:
    cells = np.full((LAST_HOUR - FIRST_HOUR + 1, 365), np.nan)
    for hour in windows:
        at = local(hour.hour)
        if hour.origin == origin and hour.mean_delay is not None and at.hour >= FIRST_HOUR:
            cells[at.hour - FIRST_HOUR, at.timetuple().tm_yday - 1] = hour.mean_delay
    return np.ma.masked_invalid(cells)


def _months(axes: plt.Axes) -> None:
    starts = [datetime(2013, month, 1).timetuple().tm_yday for month in range(1, 13)]  # noqa: DTZ001  a calendar, no clock
    axes.set_xticks(starts, [f"{datetime(2013, month, 1):%b}" for month in range(1, 13)], ha="left")  # noqa: DTZ001
    for start in starts[1:]:
        axes.axvline(start - 0.5, color="white", linewidth=0.8)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def _mark(axes: plt.Axes, ranked: Sequence[tuple[int, AirportHour]]) -> None:
    days = [local(hour.hour).timetuple().tm_yday for _, hour in ranked]
    for (rank, hour), day in zip(ranked, days, strict=True):
        at = local(hour.hour)
        left = day > 330 or any(0 < other - day < 15 for other in days)  # beside the edge, or another mark
        axes.plot(day, at.hour, "o", markersize=9, markerfacecolor="none", markeredgecolor="black", zorder=5)
        axes.annotate(
            str(rank), (day, at.hour), xytext=(-8 if left else 8, 0), textcoords="offset points", va="center",
            ha="right" if left else "left", fontweight="bold", zorder=4,
            bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75},
        )  # fmt: skip


def _bars(axes: plt.Axes, worst: Sequence[AirportHour]) -> None:
    places = range(len(worst), 0, -1)
    delays = [hour.mean_delay or 0.0 for hour in worst]
    palette = dict(zip(AIRPORTS, ("#4e79a7", "#e15759", "#59a14f"), strict=True))
    axes.barh(list(places), delays, color=[palette[hour.origin] for hour in worst], height=0.72)
    labels = [f"{rank}.  {hour.origin}  {local(hour.hour):%a %d %b %H:00}" for rank, hour in enumerate(worst, 1)]
    axes.set_yticks(list(places), labels)
    for place, hour, delay in zip(places, worst, delays, strict=True):
        note = f" {delay:.0f} min, {hour.departed} departures" + (
            f", {hour.cancelled} cancelled" if hour.cancelled else ""
        )
        axes.text(delay, place, note, va="center")
    axes.set_xlim(0, max(delays) * 1.18)
    axes.set_title(
        "The ten worst airport-hours (at least 5 departures), mean delay in minutes", loc="left", fontweight="bold"
    )
    axes.tick_params(length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
