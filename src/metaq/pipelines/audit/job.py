"""The pipeline `audit`: waits for the grace time, reads both sides, compares them, and writes findings, figures and a report.

    FOLDER/findings, windows, keys    Parquet: a row per finding, per group and window, per key with findings
    FOLDER/report.html                the report, one file
    FOLDER/audit.json                 the figures (`figures.AuditFigures`); written last: without it the others are incomplete

Each audit replaces the last one's results. They are written to FOLDER/_making, synced, and then renamed.
"""

from __future__ import annotations

import datetime as dt
import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import Window
from pyspark.sql import functions as sql

from metaq.clock import SYSTEM, Clock
from metaq.durable import disk_fault, make_folder, sync_file, sync_folder
from metaq.pipelines.audit import comparing, evidence, figures, page, text
from metaq.pipelines.audit.figures import AuditFigures, Counts, GroupFigures, messages
from metaq.pipelines.audit.options import LEDGER, PROGRESS, TOPIC, TRACE, AuditOptions, Span
from metaq.pipelines.checkpoints import spark_path
from metaq.pipelines.job import RunStopped, check_session, stoppable
from metaq.pipelines.run import LOOK_SECONDS, Outcome, Run

_LOG = logging.getLogger(__name__)

FINDINGS, WINDOWS, KEYS, REPORT, FIGURES = "findings", "windows", "keys", "report.html", "audit.json"
MAKING = "_making"
SAMPLES = 25
"""Findings of each kind and group in the report; the Parquet files have all of them."""
SHOWN_MAX = 2000
"""Most windows in the report and the figures: more make neither a plot nor a file of reasonable size."""
CLOCKS_MS = 60_000
"""Tolerated clock skew, ms."""
_MS_MAX = 253_402_300_799_999
STOPPED_STATUS = 1
"""Exit status of a stopped audit: nothing was confirmed."""


def start(spark: Any, options: AuditOptions, run: Run) -> Outcome:
    """Run the pipeline `audit`, see `catalogue.Pipeline.start`.

    Raises: ConfigError: the session is a client of Spark Connect, or workers run another Python. NoRoute and as reading a
        topic does. StoreFull, StoreFailed: the results cannot be written.
    """
    check_session(spark, run.status.pipeline)
    clock = SYSTEM
    # Taken before the grace is waited for, which must not move it.
    span = options.span(clock.now_ms())
    watch = ClockCheck(clock)
    try:
        _await_grace(run, span, clock)
        with stoppable(spark, run, interrupt=False):
            return _Audit(spark, options, run, span, watch).outcome()
    except RunStopped:
        return Outcome({"stopped": True}, "stopped: nothing was compared, and nothing is written", STOPPED_STATUS)
    except OSError as fault:
        raise disk_fault(fault, f"what the audit found cannot be written to {run.place}") from fault


def _await_grace(run: Run, span: Span, clock: Clock) -> None:
    """Wait until the deadline for consumption. Raises RunStopped: the run was asked to stop."""
    left = (span.deadline_ms - clock.now_ms()) / 1000
    # By the monotonic clock: with a wall clock that is set back meanwhile it could wait for years.
    over = clock.monotonic() + left
    if left > 0:
        run.tell(f"waiting {left:.0f} s: what is consumed until then counts (graceSeconds)", step="grace")
    while (left := over - clock.monotonic()) > 0:
        if run.wait(min(left, LOOK_SECONDS)):
            raise RunStopped
    if run.stopping:
        raise RunStopped


class ClockCheck:
    """Checks the clocks that the audit relies on: this machine's and the brokers'."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms, self._began = clock.now_ms(), clock.monotonic()

    def sentences(self, newest_ms: int | None) -> Iterator[str]:
        """Yield a sentence per clock that is wrong.

        Args: newest_ms: store time of the newest message of the audited topics; None: unknown.
        """
        now_ms = self._clock.now_ms()
        passed_ms = round((self._clock.monotonic() - self._began) * 1000)
        off_ms = now_ms - self._began_ms - passed_ms
        if abs(off_ms) > CLOCKS_MS:
            how = "forward" if off_ms > 0 else "back"
            yield (
                f"This machine's clock was set {how} by {abs(off_ms) // 1000:,} s while the audit ran: its times are by the clock as it was "
                "at the beginning."
            )
        if newest_ms is not None and newest_ms > self._began_ms + passed_ms + CLOCKS_MS:
            yield (
                f"The newest message of these topics was stored at {_iso(min(newest_ms, _MS_MAX))} by its broker's clock, which this machine's "
                "has not come to: one of them is wrong, and what lies behind the end of the audited time is not judged."
            )


class _Audit:
    """One audit, from reading to the report."""

    def __init__(self, spark: Any, options: AuditOptions, run: Run, span: Span, watch: ClockCheck) -> None:
        self._watch = watch
        self._spark, self._options, self._run, self._span = spark, options, run, span
        self._rules = comparing.Rules(span, round(options.late_seconds * 1000), options.order)
        self._notes: list[str] = []

    def outcome(self) -> Outcome:
        found = evidence.gather(self._spark, self._options, self._span)
        kept: list[Any] = []
        try:
            return self._compared(found, kept)
        finally:
            for frame in kept:
                frame.unpersist()
            found.release()

    def _compared(self, found: evidence.Evidence, kept: list[Any]) -> Outcome:
        options = self._options
        chosen = found.sent.where(sql.col("tag").isin(options.tags_named)) if options.tags_named else found.sent
        # Kept: a dozen actions follow, and each would join anew.
        judged = self._keep(comparing.judged(comparing.once(chosen.where("id != ''")), self._span), kept)
        got = self._keep(comparing.consumed(found.deliveries, self._span.deadline_ms), kept)
        nameless = comparing.judged(chosen.where("id = ''"), self._span).count()
        sent, first_ms, last_ms = judged.agg(
            sql.count_if("certain"), sql.min("time_ms"), sql.max("time_ms")
        ).first()  # fmt: skip
        self._step(f"{messages(sent)} sent", "sent", sent)
        per_group = {
            row["group"]: row["n"] for row in got.groupBy("group").agg(sql.sum("deliveries").alias("n")).collect()
        }
        self._step(
            f"{sum(per_group.values()):,} deliveries to {len(per_group)} groups", "deliveries", sum(per_group.values())
        )

        pairs = self._pairs(judged, got)
        groups = sorted({group for group, _ in pairs})
        answers = evidence.ask(options, self._span, groups)
        for sentence in self._watch.sentences(answers.newest_ms):
            _LOG.warning("audit: %s", sentence)
            self._note(sentence)
        by = self._evidence_of(groups, per_group, {group for group, _, offset in answers.progress if offset})
        dead = self._keep(evidence.dead_letters(self._spark, options, self._span, answers.with_dead_letters), kept)
        verdict = self._keep(self._verdicts(judged, got, pairs, answers.progress, dead, by), kept)
        mine = got.where(sql.col("group").isin(groups))
        stray = self._keep(comparing.strays(mine, found.known), kept)
        window_ms = (
            round(options.window_seconds * 1000)
            if options.window_seconds
            else figures.fitting_window_ms(first_ms, last_ms) if sent else figures.LADDER_MS[0]
        )  # fmt: skip
        frames = {
            FINDINGS: comparing.findings(verdict, stray),
            WINDOWS: comparing.windows(verdict, window_ms),
            KEYS: comparing.keys(verdict),
        }
        not_traced = max(0, answers.stored - sent) if answers.stored is not None else 0
        shown_ms = window_ms
        if sent and last_ms // window_ms - first_ms // window_ms >= SHOWN_MAX:
            shown_ms = figures.fitting_window_ms(first_ms, last_ms)
            self._note(
                f"These are more than {SHOWN_MAX:,} windows of {text.span(window_ms)}: they are in {WINDOWS}, and the report shows "
                f"windows of {text.span(shown_ms)}."
            )
        shown = frames[WINDOWS] if shown_ms == window_ms else comparing.windows(verdict, shown_ms)
        results = self._groups(groups, by, verdict, stray, {**frames, WINDOWS: shown})
        unjudged = sum(one.counts.unjudged for one in results)
        self._note_limits(found.unreadable, nameless, unjudged, sent, not_traced, results)
        self._step("compared", "compared", 0)
        result = AuditFigures(
            made=_iso(SYSTEM.now_ms()),
            topics=options.topics_named or sorted({topic for _, topic in pairs}),
            sent_by=options.sent, consumed_by=options.consumed,
            since_ms=self._span.since_ms, until_ms=self._span.until_ms, deadline_ms=self._span.deadline_ms,
            window_ms=shown_ms, late_ms=self._rules.late_ms, order=options.order, sent=sent, not_traced=not_traced,
            groups=results, breaches=figures.breaches(options, sent, results), notes=self._notes,
        )  # fmt: skip
        self._publish(frames, result)
        where = self._run.place / REPORT
        return Outcome(
            msgspec.to_builtins(result) | {"report": str(where)},
            f"{text.table(result)}\nreport: {where}",
            0 if result.clean else 1,
        )

    # -------------------------------------------------------------- groups and their evidence
    def _pairs(self, judged: Any, got: Any) -> list[tuple[str, str]]:
        options = self._options
        if not options.expected:
            return sorted((row["group"], row["topic"]) for row in comparing.pairs_seen(judged, got).collect())
        topics = options.topics_named or [row[0] for row in judged.select("topic").distinct().collect()]
        return sorted({
            (group, one) for group, topic in options.expected for one in ([topic] if topic is not None else topics)
        })  # fmt: skip

    def _evidence_of(self, groups: Sequence[str], traced: dict[str, int], progressed: set[str]) -> dict[str, str]:
        """Return group → kind of evidence: its offsets where nothing is traced of it."""
        options, found = self._options, {}
        for group in groups:
            found[group] = options.consumed
            if options.consumed == PROGRESS or traced.get(group):
                if options.consumed == PROGRESS and group not in progressed:
                    self._note(f"The group {group} has no offsets in these topics: it has never consumed of them.")
                continue
            if options.consumed == TRACE and group in progressed:
                found[group] = PROGRESS
                self._note(
                    f"Nothing is traced of the group {group} in this time, so it is judged by its offsets alone: what they have "
                    "passed by counts as consumed. Give its consumers trace=True."
                )
            else:
                self._note(f"Nobody tells of any delivery to the group {group} in this time.")
        return found

    def _verdicts(
        self,
        judged: Any,
        got: Any,
        pairs: Sequence[tuple[str, str]],
        progress: Sequence[Any],
        dead: Any,
        by: dict[str, str],
    ) -> Any:
        offsets = self._spark.createDataFrame(list(progress), comparing.PROGRESS_DDL)

        def of(wanted: bool) -> Any:
            mine = [pair for pair in pairs if (by[pair[0]] == PROGRESS) == wanted]
            return mine, self._spark.createDataFrame(mine, comparing.PAIRS_DDL)

        mine, frame = of(False)
        verdict = comparing.verdicts(judged, got, frame, offsets, dead, self._rules)
        mine, frame = of(True)
        if mine:
            verdict = verdict.unionByName(comparing.verdicts_by_progress(judged, frame, offsets, dead, self._rules))
        return verdict

    # -------------------------------------------------------------- figures
    def _groups(
        self, groups: Sequence[str], by: dict[str, str], verdict: Any, stray: Any, frames: dict[str, Any]
    ) -> list[GroupFigures]:
        counts: dict[str, Counts] = {}
        topics: dict[str, list[figures.TopicCounts]] = {}
        for row in sorted(comparing.totals(verdict).collect(), key=lambda row: (row["group"], row["topic"] or "")):
            # The rollup's row of a whole group has no topic.
            if row["topic"] is None:
                counts[row["group"]] = Counts.of(row.asDict())
            else:
                topics.setdefault(row["group"], []).append(figures.TopicCounts(row["topic"], Counts.of(row.asDict())))
        strays = {row["group"]: row["count"] for row in stray.groupBy("group").count().collect()}
        windows: dict[str, list[figures.WindowCounts]] = {}
        for row in frames[WINDOWS].orderBy("group", "window_ms").collect():
            windows.setdefault(row["group"], []).append(figures.WindowCounts(row["window_ms"], Counts.of(row.asDict())))
        keys: dict[str, list[figures.KeyCounts]] = {}
        for row in _first(frames[KEYS], ["group"], [sql.desc("findings"), "topic", "key"], self._options.keys_top):
            one = figures.KeyCounts(row["topic"], row["key"], Counts.of(row.asDict()))
            keys.setdefault(row["group"], []).append(one)
        samples: dict[str, list[figures.Finding]] = {}
        for row in _first(frames[FINDINGS], ["group", "kind"], ["sent_time", "consumed_time", "id"], SAMPLES):
            samples.setdefault(row["group"], []).append(_finding(row))
        return [
            GroupFigures(
                group=group, evidence=by[group], counts=counts.get(group, Counts()), stray=strays.get(group, 0),
                topics=topics.get(group, []), windows=windows.get(group, []), keys=keys.get(group, []),
                findings=samples.get(group, []),
            )
            for group in groups
        ]  # fmt: skip

    def _note_limits(
        self, unreadable: int, nameless: int, unjudged: int, sent: int, not_traced: int, groups: Sequence[GroupFigures]
    ) -> None:
        """Add notes on limits of this audit that may explain its findings."""
        options = self._options
        if unreadable:
            self._note(f"Records of traces or ledgers that could not be read, and were passed over: {unreadable:,}.")
        if not_traced:
            self._note(
                f"Not traced: {messages(not_traced)}. In this time {sent + not_traced:,} are stored and {sent:,} sends are traced; "
                "nothing is said of the others. Producers trace at most trace_rate messages a second; sent=topic compares "
                "what is stored."
            )
        strays = any(one.stray for one in groups)
        if options.sent == TRACE and not_traced and strays:
            self._note("What is called stray may be of sends that were not traced.")
        if any(one.counts.missing and one.evidence == TRACE for one in groups):
            self._note(
                "Traces are kept at the best of a client's ability: deliveries above trace_rate, and those of the last half "
                "second of a client that was killed, are told by nobody, and their messages look missing or not ended."
            )
        if options.sent == TOPIC and options.consumed == TRACE and strays:
            self._note(
                "A traced delivery does not tell its topic: what a group consumes of topics that are not audited and whose "
                "producers do not trace is called stray."
            )
        if nameless:
            self._note(f"Left out, because they have no {options.match} to be known by: {messages(nameless)}.")
        if unjudged:
            self._note(
                f"Not judged: {messages(unjudged)} that a group has not consumed, whose send failed, whose transaction is open, or "
                "which are due at a time that no trace tells."
            )
        if options.sent == LEDGER and options.consumed != LEDGER:
            self._note("The ledger of sends must hold the ids that the broker knows: those of the receipts.")

    # -------------------------------------------------------------- results
    def _publish(self, frames: dict[str, Any], result: AuditFigures) -> None:
        """Write all results into a new folder, then replace the last audit's."""
        place, making = self._run.place, self._run.place / MAKING
        # Of an audit that was killed.
        shutil.rmtree(making, ignore_errors=True)
        try:
            self._make(making, frames, result)
        except BaseException:
            # On a full disk the rest of this audit would block the next one.
            shutil.rmtree(making, ignore_errors=True)
            raise
        # First gone, last back: readers take results for complete by it.
        (place / FIGURES).unlink(missing_ok=True)
        for name in (*frames, REPORT, FIGURES):
            # A rename replaces no folder that has files.
            if (place / name).is_dir():
                shutil.rmtree(place / name)
            (making / name).rename(place / name)
        sync_folder(place)
        shutil.rmtree(making, ignore_errors=True)

    def _make(self, making: Path, frames: dict[str, Any], result: AuditFigures) -> None:
        make_folder(making)
        for name, frame in frames.items():
            frame.write.mode("overwrite").parquet(spark_path(making / name))
            self._step(f"{name} written", name, 0)
        drawn = page.render(result)
        if drawn.without:
            self._run.tell(drawn.without, step="plots")
        (making / REPORT).write_text(drawn.html, encoding="utf-8")
        (making / FIGURES).write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
        # Synced before the renames: the figures must never name files that a power cut has emptied.
        for path in making.rglob("*"):
            (sync_folder if path.is_dir() else sync_file)(path)

    def _keep(self, frame: Any, kept: list[Any]) -> Any:
        kept.append(frame.persist())
        return kept[-1]

    def _note(self, sentence: str) -> None:
        self._notes.append(sentence)

    def _step(self, line: str, step: str, rows: int) -> None:
        """Record a finished step. Raises RunStopped: the run was asked to stop."""
        if self._run.stopping:
            raise RunStopped
        self._run.tell(line, step=step, **({"rows": rows} if rows else {}))


def _first(frame: Any, by: Sequence[str], order: Sequence[Any], count: int) -> list[Any]:
    """Return the first `count` rows of each group `by`, in `order`."""
    number = sql.row_number().over(Window.partitionBy(*by).orderBy(*order))
    return list(frame.withColumn("_n", number).where(sql.col("_n") <= count).orderBy(*by, "_n").collect())


def _finding(row: Any) -> figures.Finding:
    return figures.Finding(
        kind=row["kind"], id=row["id"], topic=row["topic"] or "", key=row["key"] or "", lane=row["lane"] or "",
        place=row["place"], sent_ms=_ms(row["sent_time"]), consumed_ms=_ms(row["consumed_time"]),
        latency_ms=row["latency_ms"], successes=row["successes"] or 0, failures=row["failures"] or 0, why=row["why"] or "",
    )  # fmt: skip


def _ms(moment: dt.datetime | None) -> int | None:
    """Return the ms since 1970 of a timestamp as Spark's `collect` returns it: naive, in the driver's local time."""
    return None if moment is None else round(moment.timestamp() * 1000)


def _iso(ms: int) -> str:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
