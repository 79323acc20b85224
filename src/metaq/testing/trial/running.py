"""Runs of a cluster under load and faults, each from a seed; judged, and reported with what repeats it."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from metaq.errors import ConfigError
from metaq.testing.checking import History, Ledger, Promises, Verdict, Violation, judge, read_history, report
from metaq.testing.cluster import Cluster
from metaq.testing.faketime import MISSING, find_faketime
from metaq.testing.nemesis import Nemesis, Schedule, Topology, checked_faults, make_schedule
from metaq.testing.trial.modes import mode_of
from metaq.testing.trial.watching import LeaderWatch
from metaq.testing.workload import Load, Workload

_DISK_FAULTS: Final = {"slow-disk", "full-disk", "power"}
FILES: Final[Mapping[str, object]] = {
    "mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 2000, "maxIndexNum": 8000, "mappedFileSizeConsumeQueue": 60_000,
    "registerNameServerPeriod": 1000, "haSendHeartbeatInterval": 200, "haHousekeepingInterval": 1000, "autoCreateTopicEnable": "false",
}  # fmt: skip
"""Options of all brokers: small files, as those of faulty disks are in memory too, and intervals that a run of seconds has many of."""
HISTORY, RUN, REPORT, SCHEDULE, SERVERS = "history", "run.json", "report.txt", "schedule.txt", "cluster"
"""Names in the folder of a run."""


class Trial(Struct, frozen=True):
    """What runs are made of; a run's seed decides the rest."""

    mode: str = "sync"
    """One of `MODES`."""
    brokers: int = 1
    """Brokers of different names."""
    replicas: int | None = None
    """None: the mode's."""
    name_servers: int = 1
    """Name servers."""
    zookeepers: int | None = None
    """Servers of the ZooKeeper ensemble; None: as many as the mode needs."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Of all brokers, over the mode's."""
    faults: tuple[str, ...] = ()
    """Kinds; empty: the mode's."""
    seconds: float = 15.0
    """Seconds for which there are faults."""
    load: Load = Load()
    """What producers and consumers do."""
    patience: float = 60.0
    """Seconds to wait for what comes by itself, once the faults are undone."""

    def topology(self) -> Topology:
        """Return the shape of its clusters. Raises ConfigError: there is no such mode."""
        mode = mode_of(self.mode)
        return Topology(
            self.brokers,
            mode.replicas if self.replicas is None else self.replicas,
            self.name_servers,
            mode.zookeepers if self.zookeepers is None else self.zookeepers,
        )

    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of its faults. Raises ConfigError: one is unknown, or not of this cluster or machine."""
        kinds = checked_faults(self.faults or mode_of(self.mode).faults, self.topology())
        if "clock" in kinds and find_faketime() is None:
            raise ConfigError(f"faults of clocks: {MISSING}")
        return kinds

    def schedule(self, seed: int) -> Schedule:
        """Return what happens in a run. Raises as `kinds`; ConfigError: a time of less than a second."""
        return make_schedule(seed, self.topology(), self.kinds(), self.seconds)


class TrialResult(Struct, frozen=True):
    """How a run ended."""

    trial: Trial
    """What was run."""
    seed: int
    """The run's seed."""
    verdict: Verdict
    """What the checkers found."""
    text: str
    """The report: what was found, with the events around it, the schedule, and the command that repeats it."""
    folder: Path | None
    """Its files, if they were kept: `history`, `report.txt`, `schedule.txt`, and `cluster` with all logs and stores."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return self.verdict.ok

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON: `mode`, `seed`, what `Verdict.as_dict` has, `report`, `folder` (None: the files were not kept)."""
        folder = str(self.folder) if self.folder is not None else None
        return {
            "mode": self.trial.mode,
            "seed": self.seed,
            **self.verdict.as_dict(),
            "report": self.text,
            "folder": folder,
        }


def run_trial(
    trial: Trial, seed: int, keep: str | os.PathLike[str] | None = None, over: threading.Event | None = None
) -> TrialResult:
    """Run one seed, and judge it.

    Args:
        keep: a folder in which the run's files stay; by default those of a run that found something do.
        over: ends the faults early when it is set.
    Raises ConfigError: the trial cannot be run.
    """
    schedule = trial.schedule(seed)
    name = f"{trial.mode}-{seed}"
    if keep is not None:
        folder = Path(keep) / name
        if folder.exists():
            raise ConfigError(f"{folder} is there already: name another folder, or remove it")
        folder.mkdir(parents=True)
    else:
        folder = Path(tempfile.mkdtemp(prefix=f"metaq-trial-{name}-"))
    (folder / SCHEDULE).write_text(f"{schedule}\n", encoding="utf-8")
    failure = _perform(trial, schedule, folder, over)
    promises = _promises(trial)
    (folder / RUN).write_bytes(
        msgspec.json.encode({"trial": trial, "seed": seed, "promises": promises, "failure": failure})
    )
    result = _result(trial, seed, folder, promises, failure)
    (folder / REPORT).write_text(f"{result.text}\n", encoding="utf-8")
    if result.ok and keep is None:
        shutil.rmtree(folder)
        return msgspec.structs.replace(result, folder=None)
    return result


def run_trials(
    trial: Trial, seeds: Iterable[int], at_once: int = 2, keep: str | os.PathLike[str] | None = None
) -> Iterator[TrialResult]:
    """Run several seeds, some beside each other: most of each is waiting. Yields how each ended, in their order."""
    trial.kinds()  # before anything is started
    over = threading.Event()
    threads = ThreadPoolExecutor(at_once)
    try:
        yield from threads.map(lambda seed: run_trial(trial, seed, keep, over), seeds)
    finally:
        over.set()  # those that run when a caller breaks off end soon
        threads.shutdown(cancel_futures=True)


class _KeptRun(Struct):
    trial: Trial
    seed: int
    promises: Promises
    failure: tuple[str, str] | None = None


def judge_again(folder: str | os.PathLike[str]) -> TrialResult:
    """Judge the files of a run again. Raises ConfigError: the folder is none of a run."""
    place = Path(folder)
    try:
        run = msgspec.json.decode((place / RUN).read_bytes(), type=_KeptRun)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{place} is not the folder of a run: {RUN}: {error}") from None
    return _result(run.trial, run.seed, place, run.promises, run.failure)


def _promises(trial: Trial) -> Promises:
    return mode_of(trial.mode).promises(tuple(trial.load.groups()), trial.kinds())


def _perform(trial: Trial, schedule: Schedule, folder: Path, over: threading.Event | None) -> tuple[str, str] | None:
    """Run it. Returns what has kept it from its end: the check that this concerns, and the text."""
    mode, topology, kinds = mode_of(trial.mode), trial.topology(), trial.kinds()
    stage = "the run starts"
    try:
        with (
            Ledger(folder / HISTORY) as ledger,
            Cluster(
                brokers=topology.brokers,
                replicas=topology.replicas,
                name_servers=topology.name_servers,
                zookeeper=topology.zookeepers,
                faulty_disks=not _DISK_FAULTS.isdisjoint(kinds),
                clocks="clock" in kinds,
                folder=folder / SERVERS,
                options={**FILES, **mode.options, **trial.options},
                networks=True,
            ) as cluster,
        ):
            names = list(dict.fromkeys(broker.broker_name for broker in cluster.brokers))
            workload = Workload(cluster.namesrv, names, ledger, trial.load, schedule.seed)
            stage = "the load starts"
            try:
                workload.start()
                with LeaderWatch(cluster, ledger):
                    with Nemesis(cluster, ledger, schedule, over) as nemesis:
                        stage = "faults are made and undone"
                        nemesis.run()
                    stage = "replicas get in sync"
                    cluster.wait_in_sync(trial.patience)
                    stage = "everything is read"
                    workload.stop_producers()
                    cluster.wait_in_sync(trial.patience)  # what producers have not heard of is read, too
                    workload.finish(trial.patience)
                    cluster.wait_in_sync(trial.patience)
                    for broker in cluster.brokers:
                        workload.note_replica(f"{broker.broker_name}/{broker.name}", broker.data)
            except BaseException:
                _quietly_stopped(workload)
                raise
            stage = "everything is stopped"
    except Exception as error:  # noqa: BLE001  any failure of a run is a finding
        return stage, "".join(traceback.format_exception(error, limit=-3)).strip()
    return None


def _quietly_stopped(workload: Workload) -> None:
    try:
        workload.stop()
    except Exception as error:  # noqa: BLE001  the first failure is told
        traceback.clear_frames(error.__traceback__)


def _result(trial: Trial, seed: int, folder: Path, promises: Promises, failure: tuple[str, str] | None) -> TrialResult:
    history: History = read_history(folder / HISTORY)
    if failure is not None:
        # What was not looked at in the end cannot be judged.
        verdict = Verdict(
            (Violation("gets well", f"{failure[0]}: {failure[1]}", max((one.at for one in history), default=0.0)),), {}
        )
    else:
        verdict = judge(history, promises)
    text = f"seed {seed} of {trial.mode}: {report(verdict, history)}"
    if not verdict.ok:
        schedule = (folder / SCHEDULE).read_text(encoding="utf-8").rstrip()
        text += f"\nthe schedule: {schedule}\nits files: {folder}\nto repeat it, as far as time allows: {command(trial, seed)}"
    return TrialResult(trial, seed, verdict, text, folder)


def command(trial: Trial, seed: int) -> str:
    """Return the command that runs a seed again."""
    default = Trial()
    words = ["metaq", "test-cluster", "--mode", trial.mode, "--seeds", str(seed), "--seconds", f"{trial.seconds:g}"]
    flags: tuple[tuple[str, object, object], ...] = (
        ("--brokers", trial.brokers, default.brokers),
        ("--replicas", trial.replicas, None),
        ("--name-servers", trial.name_servers, default.name_servers),
        ("--zookeepers", trial.zookeepers, None),
        ("--faults", ",".join(trial.faults), ""),
        ("--producers", ",".join(trial.load.producers), ",".join(default.load.producers)),
        ("--rate", f"{trial.load.rate:g}", f"{default.load.rate:g}"),
        ("--patience", f"{trial.patience:g}", f"{default.patience:g}"),
    )
    for flag, value, usual in flags:
        if value != usual:
            words += [flag, str(value)]
    for key, value in trial.options.items():
        words += ["-o", f"{key}={value}"]
    return shlex.join(words)
