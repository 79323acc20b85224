"""The command line of these programs, the settings of a session factory that it means, and a print for several threads."""

from __future__ import annotations

import argparse
import sys

from metaq.metaq1 import MetaClientConfig, ZKConfig


def arguments(
    text: str | None, *, topic: str = "test", count: int = 10, group: str | None = None
) -> tuple[MetaClientConfig, argparse.Namespace]:
    """Read the command line of a program whose docstring is `text`. The arguments are its defaults; group: of a consumer's."""
    parser = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--zookeeper", default="127.0.0.1:2181", metavar="HOST:PORT", help="where brokers are found")
    place.add_argument("--server", metavar="meta://HOST:PORT", help="one broker, without ZooKeeper")
    parser.add_argument("--root", default="/meta", help="zk.zkRoot of the servers")
    parser.add_argument("--topic", default=topic)
    parser.add_argument("--count", type=int, default=count, help="messages after which the program ends")
    if group is not None:
        parser.add_argument("--group", default=group)
    options = parser.parse_args()
    if options.server:
        return MetaClientConfig(server_url=options.server), options
    return MetaClientConfig(zk_config=ZKConfig(zk_connect=options.zookeeper, zk_root=options.root)), options


def say(line: str) -> None:
    """Print a line in one piece, as `print` does not where several threads call it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
