"""`metaq doctor`: what is wrong with a machine, an environment, a broker or name servers."""

from __future__ import annotations

from typing import Annotated

import typer

from metaq.cli.output import EXIT_FAILED, AsJson, print_json


def show_doctor(
    data: Annotated[str, typer.Option(metavar="DIR", help="check the disk of this folder")] = ".",
    broker: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="check this broker from this machine")] = None,
    namesrv: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--namesrv",
            metavar="NAMESRV",
            help="check these name servers; with --broker, whether the broker is registered there",
        ),
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="check as a client that uses TLS")] = False,
    ca: Annotated[str | None, typer.Option(metavar="FILE", help="file with trusted CA certificates")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=60, metavar="SECONDS", help="timeout of each step")] = 5.0,
    as_json: AsJson = False,
) -> None:
    """Check this machine and its environment: compiled extension, event loop, Java, Spark, disk, limits.

    With --broker or --namesrv, these servers are checked from this machine instead, with advice on each problem (docs/addresses.md).
    Exit code 1: something will not work.
    """
    from metaq.cli.cluster import examine

    if broker is None and namesrv is None:
        findings = examine.examine(data)
    else:
        findings = examine.examine_servers(broker, namesrv, tls=tls, ca=ca, timeout=timeout)
    if as_json:
        print_json(examine.as_json(findings))
    else:
        marks = {examine.OK: "  ok  ", examine.NOTICE: "notice", examine.WRONG: "WRONG "}
        for finding in findings:
            print(f"{marks[finding.state]}  {finding.what + ':':14} {finding.text}")
    if any(finding.state == examine.WRONG for finding in findings):
        raise typer.Exit(EXIT_FAILED)
