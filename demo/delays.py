"""The streaming query: mean departure delay by airport and hour of scheduled departure."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.sql import functions as F  # noqa: N812  its usual name

from demo.flights import Flight
from demo.sending import EVENT_TIME, TOPIC
from metaq.spark.engine.slow_start import run_through

WATERMARK = "366 days"
"""The file is sorted by month as text: after December come February to September, ten months back. A watermark is how late
a row may be, so it must span the year; with less, Spark would drop most flights and say so only in a counter."""
ROWS_PER_BATCH = 120_000


class AirportHour(NamedTuple):
    """One window's result."""

    origin: str
    hour: datetime
    """Start, UTC."""
    mean_delay: float | None
    """Minutes; None if every flight was cancelled."""
    departed: int
    cancelled: int


class Outcome(NamedTuple):
    windows: list[AirportHour]
    rows: int
    dropped: int
    """numRowsDroppedByWatermark, all batches and operators together."""
    seconds: float


def run(spark: Any, namesrv: str, checkpoint: str, on_rows: Callable[[int], None]) -> Outcome:
    """Read the topic from its beginning to where it ends now."""
    stream = (
        spark.readStream.format("metaq")
        .options(nameServers=namesrv, subscribe=TOPIC, startingOffsets="earliest", minPartitions="2")
        .options(columns="message_id,properties,body", maxOffsetsPerTrigger=str(ROWS_PER_BATCH))
        .load()
    )
    body = F.from_json(F.col("body").cast("string"), "origin string, departure_delay int")
    flights = stream.select(
        "message_id",
        F.to_timestamp(F.col("properties")[EVENT_TIME]).alias("scheduled"),
        body["origin"].alias("origin"),
        body["departure_delay"].alias("delay"),
    )
    hours = (
        flights.withWatermark("scheduled", WATERMARK)
        .dropDuplicatesWithinWatermark(["message_id"])  # a flight that was sent again counts once
        .groupBy("origin", F.window("scheduled", "1 hour"))
        .agg(F.avg("delay").alias("mean"), F.count("delay").alias("departed"), F.count("*").alias("flights"))
        .select("origin", F.col("window.start").alias("hour"), "mean", "departed", "flights")
    )
    latest: dict[tuple[str, datetime], AirportHour] = {}

    def upsert(frame: Any, _batch: int) -> None:
        # Update mode: a window comes with every batch that changed it, also the last ones, which no watermark has closed.
        # A replayed batch brings the same values again.
        for row in frame.toArrow().to_pylist():
            hour = row["hour"].astimezone(UTC)
            cancelled = row["flights"] - row["departed"]
            latest[row["origin"], hour] = AirportHour(row["origin"], hour, row["mean"], row["departed"], cancelled)

    started = time.perf_counter()
    writer = hours.writeStream.outputMode("update").foreachBatch(upsert).option("checkpointLocation", checkpoint)

    def watch(query: Any) -> list[Any]:
        while not query.awaitTermination(0.2):
            on_rows(sum(progress["numInputRows"] for progress in query.recentProgress))
        return list(query.recentProgress)

    batches = run_through(writer.trigger(availableNow=True).start, watch)
    rows = sum(progress["numInputRows"] for progress in batches)
    dropped = sum(op["numRowsDroppedByWatermark"] for progress in batches for op in progress["stateOperators"])
    on_rows(rows)
    return Outcome(sorted(latest.values()), rows, dropped, time.perf_counter() - started)


def by_hand(flights: Iterable[Flight]) -> list[AirportHour]:
    """The same from the file, without broker and Spark."""
    delays: dict[tuple[str, str], list[int | None]] = {}
    for flight in flights:
        delays.setdefault((flight.origin, flight.scheduled[:13]), []).append(flight.delay)
    found = []
    for (origin, hour), values in delays.items():
        departed = [value for value in values if value is not None]
        mean = statistics.fmean(departed) if departed else None
        start = datetime.fromisoformat(f"{hour}:00:00+00:00")
        found.append(AirportHour(origin, start, mean, len(departed), len(values) - len(departed)))
    return sorted(found)


def same(one: list[AirportHour], other: list[AirportHour]) -> bool:
    """Whether both have the same windows with the same numbers, means to nine digits."""
    return [_rounded(hour) for hour in one] == [_rounded(hour) for hour in other]


def _rounded(hour: AirportHour) -> AirportHour:
    return hour._replace(mean_delay=None if hour.mean_delay is None else round(hour.mean_delay, 9))


def worst(windows: list[AirportHour], count: int, departed_min: int) -> list[AirportHour]:
    """The airport-hours with the greatest mean delay, among those with at least `departed_min` departures."""
    busy = [hour for hour in windows if hour.departed >= departed_min and hour.mean_delay is not None]
    return sorted(busy, key=lambda hour: -(hour.mean_delay or 0.0))[:count]
