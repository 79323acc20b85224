"""`metaq dashboard`: pages about a cluster, for browsers."""

from __future__ import annotations

from typing import Annotated

import typer

from metaq.cli.output import NAMESRV_DEFAULT, NameServers

LOG_LEVELS = "debug, info, warning or error"


def run_dashboard(
    namesrv: NameServers = NAMESRV_DEFAULT,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="NUMBER", help="port to listen on; 0: a free one")
    ] = 8121,
    bind: Annotated[str, typer.Option("--bind", metavar="HOST", help="address to listen on")] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="HOST", help="another host name that browsers may use for it; may be repeated"),
    ] = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="show forms that change the cluster, and accept them")
    ] = False,
    login: Annotated[
        bool | None,
        typer.Option(
            "--login/--no-login", help="visitors log in with an account of the cluster (default: if it has accounts)"
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="allow --bind to an address that other machines reach, without TLS")
    ] = False,
    pipelines: Annotated[
        list[str] | None,
        typer.Option("--pipelines", metavar="FOLDER", help="folder of a pipeline, or of several; may be repeated"),
    ] = None,
    zookeeper: Annotated[
        str, typer.Option("--zookeeper", metavar="HOST:PORT", help="ZooKeeper of MetaQ 1.x, with /ROOT if not /meta")
    ] = "",
    schemas: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="file that names topics with Avro or Protobuf bodies, and their schemas (docs/dashboard.md)",
        ),
    ] = None,
    https_cert: Annotated[
        str,
        typer.Option("--https-cert", metavar="FILE", help="certificate with its chain (PEM), to serve HTTPS"),
    ] = "",
    https_key: Annotated[
        str, typer.Option("--https-key", metavar="FILE", help="private key of --https-cert (PEM)")
    ] = "",
    log_level: Annotated[str, typer.Option("--log-level", metavar="LEVEL", help=LOG_LEVELS)] = "info",
) -> None:
    """Serve a web dashboard of a cluster: brokers, topics, groups, and what needs attention. Ctrl-C ends it.

    It also works with clusters of RocketMQ 4.x. It changes nothing unless --allow-changes is given. If the cluster has accounts, visitors
    log in with theirs (docs/dashboard.md).
    """
    from metaq.app.runtime import set_up_logging
    from metaq.cli import serving_dashboard
    from metaq.client.identity.options import client_options
    from metaq.dashboard.settings import DashboardSettings

    if log_level.lower() not in LOG_LEVELS.replace(" or", ",").replace(",", " ").split():
        raise typer.BadParameter(f"need {LOG_LEVELS}", param_hint="--log-level")
    set_up_logging(log_level)
    settings = DashboardSettings(
        namesrv=namesrv, host=bind, port=port, names=tuple(name or ()), allow_changes=allow_changes, login=login, insecure=insecure,
        client=client_options(), pipelines=tuple(pipelines or ()), zookeeper=zookeeper, schemas=schemas, https_cert=https_cert, https_key=https_key,
    )  # fmt: skip
    serving_dashboard.run_dashboard(settings)
