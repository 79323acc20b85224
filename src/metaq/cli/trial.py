"""`metaq test-cluster`: clusters of this machine under load and faults, by seed, and whether they keep their promises."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Final

import typer

from metaq.cli.output import EXIT_FAILED, AsJson, print_json_line

SEEDS_MAX: Final = 100_000


def seeds_of(text: str) -> list[int]:
    """Return the numbers that `3`, `1-10` or `1-3,7` says. Raises typer.BadParameter."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            begin, end = int(first), int(last if dash else first)
        except ValueError:
            raise typer.BadParameter(f"{part!r} is not a seed: give numbers, as in 3, 1-10 or 1-3,7") from None
        if begin > end or len(found) + end - begin >= SEEDS_MAX:
            raise typer.BadParameter(f"{part!r}: need a range that goes up, and no more than {SEEDS_MAX} seeds")
        found += range(begin, end + 1)
    return found


@contextlib.contextmanager
def _silent_clients() -> Iterator[None]:
    """That connections break is what is wanted here; clients would tell each."""
    import logging

    log = logging.getLogger("metaq")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip()) if text else ()


def _options(pairs: list[str] | None) -> dict[str, object]:
    found: dict[str, object] = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"-o {pair}: need key=value")
        found[key.strip()] = value
    return found


def try_cluster(
    mode: Annotated[
        str, typer.Option(metavar="MODE", help="kind of cluster: single, sync, failover or failover-3")
    ] = "sync",
    seeds: Annotated[str, typer.Option(metavar="SEEDS", help="numbers of the schedules: 3, 1-10 or 1-3,7")] = "1-10",
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="how long faults are made in each run")] = 15.0,
    faults: Annotated[
        str | None,
        typer.Option(
            metavar="KINDS",
            help="faults to make: kill, stop, partition, slow-network, restart, restart-all, slow-disk, full-disk, power, clock, zookeeper (default: the mode's)",
        ),
    ] = None,
    brokers: Annotated[int, typer.Option(min=1, max=16, help="number of broker names")] = 1,
    replicas: Annotated[
        int | None, typer.Option(min=1, max=16, help="replicas of each broker (default: the mode's)")
    ] = None,
    name_servers: Annotated[int, typer.Option(min=1, max=8, help="number of name servers")] = 1,
    zookeepers: Annotated[
        int | None, typer.Option(min=0, max=3, help="ZooKeeper servers, 1 or 3 (default: the mode's)")
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("-o", metavar="KEY=VALUE", help="option of all brokers, overrides the mode's; may be repeated"),
    ] = None,
    producers: Annotated[
        str | None,
        typer.Option(metavar="KINDS", help="kinds of producers, one of each: sync, aio, submit, batch, atomic"),
    ] = None,
    rate: Annotated[float, typer.Option(min=0.1, max=10_000, help="most sends per second of each producer")] = 40.0,
    patience: Annotated[
        float,
        typer.Option(
            min=1, max=3600, metavar="SECONDS", help="longest wait for the recovery once the faults are undone"
        ),
    ] = 60.0,
    at_once: Annotated[int, typer.Option(min=1, max=64, help="number of runs in parallel")] = 2,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="keep the files of every run in this folder (default: only those of failed runs)"
        ),
    ] = None,
    judge: Annotated[
        str | None, typer.Option(metavar="DIR", help="run nothing: judge the files of a run again")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--schedule", help="run nothing: print what each seed would do")] = False,
    as_json: AsJson = False,
) -> None:
    """Run clusters on this machine under load and faults, and check what clients saw.

    Each seed is a schedule of faults, which are made and undone; then all messages are read. What was acknowledged must be there, what was
    refused must not, queues have one order, atomic sends are complete, groups get every message, and an epoch has one leader
    (docs/testing.md). Prints a report of each run (with --json a document), and for each violation the command that repeats it. Exit code 1:
    a guarantee was violated.
    """
    from metaq.testing.trial import Trial, judge_again, run_trials
    from metaq.testing.workload import Load

    if judge is not None:
        results = iter([judge_again(judge)])
    else:
        load = Load(rate=rate, producers=_words(producers) or Load().producers)
        trial = Trial(
            mode=mode,
            brokers=brokers,
            replicas=replicas,
            name_servers=name_servers,
            zookeepers=zookeepers,
            options=_options(options),
            faults=_words(faults),
            seconds=seconds,
            load=load,
            patience=patience,
        )
        chosen = seeds_of(seeds)
        if dry_run:
            for seed in chosen:
                print(trial.schedule(seed))
            return
        results = run_trials(trial, chosen, at_once, keep)
    count = failed = 0
    with _silent_clients():
        for result in results:
            count, failed = count + 1, failed + (not result.ok)
            if as_json:
                print_json_line(result.as_dict())
            else:
                print(result.text, flush=True)
    if not as_json and count > 1:
        print(f"{count} runs, {failed} failed")
    if failed:
        raise typer.Exit(EXIT_FAILED)
