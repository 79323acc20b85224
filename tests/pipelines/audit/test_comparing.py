"""The audit's comparison in Spark, held against an auditor in plain Python."""

from __future__ import annotations

import random

import pytest

from metaq.pipelines.audit.options import Span
from tests.pipelines.audit import auditor
from tests.pipelines.audit.auditor import Copy, Delivery

pytestmark = [pytest.mark.slow, pytest.mark.spark]
SINCE, UNTIL, DEADLINE, LATE_MS = 1_000, 1_060, 1_080, 25


def history(case, rng):
    """A small history of its own: names of one case are in no other, so that all can be compared at once."""
    topics = [f"t{case}-{n}" for n in range(rng.randint(1, 2))]
    groups = [f"g{case}-{n}" for n in range(rng.randint(1, 2))]
    copies, places = [], {}
    for number in range(rng.randint(0, 12)):
        topic = rng.choice(topics)
        lane = rng.choice([None, f"{topic}@b:0", f"{topic}@b:1"])
        placed = lane is not None and rng.random() < 0.9
        for _ in range(rng.choice([1, 1, 1, 2])):
            place = places[lane] = places.get(lane, -1) + 1
            copies.append(
                Copy(
                    f"m{case}-{number}", topic, rng.choice(["", "a", "b"]), lane, place if placed else None,
                    rng.randint(SINCE - 5, UNTIL + 5), rng.random() < 0.9, rng.random() < 0.9,
                )
            )  # fmt: skip
    ids = [copy.id for copy in copies] + [f"x{case}-{n}" for n in range(2)]
    deliveries = [
        Delivery(rng.choice([*groups, f"other{case}"]), rng.choice(ids), rng.randint(SINCE, DEADLINE + 10),
                 rng.random() < 0.8, rng.random() < 0.9)
        for _ in range(rng.randint(0, 30))
    ]  # fmt: skip
    pairs = [(group, topic) for group in groups for topic in topics if rng.random() < 0.8]
    return copies, deliveries, pairs


def compared(spark, copies, deliveries, pairs, order, progress=(), dead=()):
    """(Findings as the auditor has them, rows of the verdict by group and id, totals by group)."""
    from metaq.pipelines.audit import comparing

    span = Span(SINCE, UNTIL, DEADLINE)
    sent = spark.createDataFrame([copy.row for copy in copies], comparing.SENT_DDL)
    told = spark.createDataFrame([one.row for one in deliveries], comparing.DELIVERIES_DDL)
    expected = spark.createDataFrame(pairs, comparing.PAIRS_DDL)
    offsets = spark.createDataFrame(list(progress), comparing.PROGRESS_DDL)
    messages = comparing.judged(comparing.once(sent), span)
    got = comparing.consumed(told, DEADLINE)
    letters = spark.createDataFrame(list(dead), comparing.DEAD_DDL)
    rules = comparing.Rules(span, LATE_MS, order)
    verdict = comparing.verdicts(messages, got, expected, offsets, letters, rules).persist()
    mine = got.join(expected.select("group").distinct(), "group")
    findings = comparing.findings(verdict, comparing.strays(mine, sent))
    found = [(row["kind"], row["group"], row["id"]) for row in findings.select("kind", "group", "id").collect()]
    assert len(found) == len(set(found)), "one row per finding"
    rows = {(row["group"], row["id"]): row for row in verdict.collect()}
    totals = {row["group"]: row for row in comparing.totals(verdict).where("topic is null").collect()}
    verdict.unpersist()
    return set(found), rows, totals


@pytest.mark.parametrize("order", ["key", "queue", "off"])
def test_it_finds_what_an_auditor_in_plain_python_finds(spark, order):
    """Missing, repeated, late, out of order and stray, in 150 small histories with everything that may go wrong."""
    rng = random.Random(f"audit-{order}")
    cases = [history(case, rng) for case in range(150)]
    copies, deliveries, pairs = ([one for case in cases for one in case[part]] for part in range(3))
    found, _, totals = compared(spark, copies, deliveries, pairs, order)
    expected, counts = set(), {}
    for case in cases:
        more, tallies = auditor.audit(*case, SINCE, UNTIL, DEADLINE, LATE_MS, order)
        expected |= more
        counts |= tallies
    kinds = {kind for kind, _, _ in expected}
    assert kinds == {"missing", "repeated", "late", "stray"} | (set() if order == "off" else {"out_of_order"})
    assert found == expected
    for (group, name), count in counts.items():
        assert totals[group][name] == count, (group, name)


def test_latencies_windows_and_keys_add_up(spark):
    """Percentiles are of real latencies (nearest rank); windows and keys hold the same messages as the totals."""
    from metaq.pipelines.audit import comparing

    copies = [Copy(f"m{n}", "t", "<b>" if n % 2 else "", "t@b:0", n, SINCE + n // 2) for n in range(100)]
    deliveries = [Delivery("g", f"m{n}", SINCE + n // 2 + n // 4) for n in range(90)]
    deliveries.append(Delivery("g", "m3", SINCE + 60))
    span = Span(SINCE, UNTIL, DEADLINE)
    messages = comparing.judged(
        comparing.once(spark.createDataFrame([one.row for one in copies], comparing.SENT_DDL)), span
    )
    got = comparing.consumed(spark.createDataFrame([one.row for one in deliveries], comparing.DELIVERIES_DDL), DEADLINE)
    pairs = spark.createDataFrame([("g", "t")], comparing.PAIRS_DDL)
    nothing, alive = (spark.createDataFrame([], ddl) for ddl in (comparing.PROGRESS_DDL, comparing.DEAD_DDL))
    verdict = comparing.verdicts(messages, got, pairs, nothing, alive, comparing.Rules(span, LATE_MS, "key"))
    total, of_topic = sorted(comparing.totals(verdict).collect(), key=lambda row: row["topic"] or "")
    assert (total["topic"], of_topic["topic"], total["sent"]) == (None, "t", of_topic["sent"])
    assert (total["sent"], total["consumed"], total["missing"], total["repeated"]) == (100, 90, 10, 1)
    latencies = sorted(n // 4 for n in range(90))
    assert [total[f"latency_{name}"] for name in ("p50", "p95", "p99", "max")] == [
        latencies[44], latencies[85], latencies[89], latencies[-1],
    ]  # fmt: skip
    windows = comparing.windows(verdict, 10).orderBy("window_ms").collect()
    assert [(row["window_ms"] - SINCE, row["sent"], row["missing"]) for row in windows] == [
        (start, 20, 10 if start == 40 else 0) for start in range(0, 50, 10)
    ]
    (key,) = comparing.keys(verdict).collect()
    assert (key["key"], key["sent"], key["missing"], key["repeated"], key["findings"]) == ("<b>", 50, 5, 1, 6)


def test_what_is_known_of_a_missing_message_is_said(spark):
    """Failed, not ended, too late, not reached, passed by without a word; of each the most that is known."""
    names = ("failed", "open", "after", "ahead", "passed", "silent")
    copies = [Copy(name, "t", "", "t@b:0", place, SINCE) for place, name in enumerate(names[:-1])]
    copies.append(Copy("silent", "t", "", "t@b:1", 0, SINCE))
    deliveries = [
        Delivery("g", "failed", SINCE, success=False), Delivery("g", "failed", SINCE + 9, success=False),
        Delivery("g", "open", SINCE, ended=False), Delivery("g", "after", DEADLINE + 1),
    ]  # fmt: skip
    _, rows, _ = compared(spark, copies[:3] + copies[5:], deliveries, [("g", "t")], "key")
    assert {name: row["why"] for (_, name), row in rows.items()} == {
        "failed": "failed 2 times", "open": "its handling has not ended", "after": "consumed after the grace",
        "silent": "no delivery is recorded",
    }  # fmt: skip
    _, rows, _ = compared(
        spark, [copies[4], Copy("ahead", "t", "", "t@b:0", 9, SINCE)], [], [("g", "t")], "key", [("g", "t@b:0", 9)]
    )
    assert {name: row["why"] for (_, name), row in rows.items()} == {
        "passed": "passed by, no delivery is recorded", "ahead": "not reached by the group",
    }  # fmt: skip


def test_dead_letters_are_told_apart_from_what_is_missing(spark):
    """Of the group whose they are; one that was consumed after all is none."""
    copies = [Copy(name, "t", "", "t@b:0", place, SINCE) for place, name in enumerate(("dead", "failed", "redriven"))]
    deliveries = [Delivery("g", "dead", SINCE, success=False), Delivery("g", "failed", SINCE, success=False)]
    deliveries.append(Delivery("g", "redriven", SINCE + 1))
    dead = [("g", "dead"), ("g", "redriven"), ("h", "failed"), ("g", "dead")]
    found, rows, totals = compared(spark, copies, deliveries, [("g", "t")], "off", dead=dead)
    assert found == {("dead", "g", "dead"), ("missing", "g", "failed")}
    assert rows["g", "dead"]["why"] == "failed 1 times"
    assert (totals["g"]["consumed"], totals["g"]["missing"], totals["g"]["dead"]) == (1, 1, 1)


def test_offsets_alone_tell_what_was_passed_by(spark):
    """Nothing of when, how often or in what order; a queue without an offset was not reached."""
    from metaq.pipelines.audit import comparing

    copies = [Copy(f"m{n}", "t", "k", f"t@b:{n % 2}", n // 2, SINCE + n) for n in range(10)]
    span = Span(SINCE, UNTIL, DEADLINE)
    messages = comparing.judged(
        comparing.once(spark.createDataFrame([one.row for one in copies], comparing.SENT_DDL)), span
    )
    pairs = spark.createDataFrame([("g", "t"), ("never", "t")], comparing.PAIRS_DDL)
    offsets = spark.createDataFrame([("g", "t@b:0", 5), ("g", "t@b:1", 2)], comparing.PROGRESS_DDL)
    dead = spark.createDataFrame([("g", "m0"), ("g", "m8"), ("never", "m1")], comparing.DEAD_DDL)
    verdict = comparing.verdicts_by_progress(messages, pairs, offsets, dead, comparing.Rules(span, LATE_MS, "key"))
    totals = {row["group"]: row for row in comparing.totals(verdict).where("topic is null").collect()}
    found = ("sent", "consumed", "missing", "dead")
    assert {group: tuple(row[name] for name in found) for group, row in totals.items()} == {
        "g": (10, 5, 3, 2), "never": (10, 0, 9, 1),
    }  # fmt: skip
    assert totals["g"]["latency_p50"] is None
    assert (totals["g"]["out_of_order"], totals["g"]["late"], totals["g"]["repeated"]) == (0, 0, 0)
