"""Flags of the commands that become servers, and the reading of command lines that have no others.

Everything else, such as `--help`, an error or a completion, is typer's, which has the same flags (`metaq.cli.servers.commands`).
Importing typer takes 60 ms and 6 MB, which a server would keep for as long as it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

SERVERS: Final = {
    "namesrv": "Run a name server, or see and set options of running ones.",
    "broker": "Run a broker, or inspect and operate running brokers.",
    "up": "Run a name server and a broker in one process.",
}

DEFAULT_FOLDER: Final = "metaq-data"

PAIR_PLUGINS: Final = ("samsa", "gregor")
"""Those that make a broker one half of a synchronous pair."""
PLUGINS: Final = (*PAIR_PLUGINS, "metaslave")
"""What 1.x's server is started with as a plugin, `-FNAME=FILE`: here a flag `--NAME` of a broker."""


class Flag(NamedTuple):
    """An option of a server."""

    name: str
    """Key of its value."""
    texts: tuple[str, ...]
    kind: type
    """str, int, or bool for a switch without a value; list: its values are collected."""
    metavar: str
    help: str


def flags_of(server: str) -> list[Flag]:
    """Return the flags of a server, by its name in `SERVERS`."""
    port = 9876 if server == "namesrv" else 10911
    file = {
        "namesrv": "a RocketMQ namesrv.properties",
        "broker": "a RocketMQ broker.conf, a MetaQ 1.x server.ini",
        "up": "a RocketMQ broker.conf, a MetaQ 1.x server.ini",
    }[server]
    folder = {
        "namesrv": "folder of the KV configuration (default ~/namesrv)",
        "broker": "folder of the store (default ~/store)",
        "up": f"folder of the store and the name server (default ./{DEFAULT_FOLDER})",
    }[server]
    at = Flag("namesrv", ("-n", "--namesrv"), str, "NAMESRV", "name servers to register at, host:port;host:port")
    beside = Flag("namesrv_port", ("--namesrv-port",), int, "P", "port of the name server (default 9876)")
    called = Flag("name", ("--name",), str, "NAME", "name of the broker (default: the host's name)")
    master = Flag(
        "samsa", ("--samsa",), str, "FILE",
        "run as the master of a synchronous pair of MetaQ 1.x with this samsa_master.properties; also -Fsamsa=FILE, as in 1.x",
    )  # fmt: skip
    slave = Flag(
        "gregor", ("--gregor",), str, "FILE",
        "run as the slave of a synchronous pair of MetaQ 1.x with this gregor_slave.properties; also -Fgregor=FILE",
    )  # fmt: skip
    asynchronous = Flag(
        "metaslave", ("--metaslave",), str, "FILE",
        "run as an asynchronous slave of MetaQ 1.x with this async_slave.properties; also -Fmetaslave=FILE, as in 1.x",
    )  # fmt: skip
    return [
        Flag("file", ("-c", "-f", "--config"), str, "FILE", f"configuration file: {file}, or a metaq.toml; flags take precedence"),
        *([at] if server == "broker" else []),
        *([asynchronous] if server == "broker" else []),
        Flag("host", ("--host",), str, "H", "address to listen on (default 127.0.0.1)"),
        Flag("port", ("--port",), int, "P", f"port (default {port}; 0 takes a free one)"),
        *([beside] if server == "up" else []),
        *([called] if server != "namesrv" else []),
        Flag("data", ("--data",), str, "DIR", folder),
        *([master, slave] if server == "broker" else []),
        Flag("settings", ("-o",), list, "KEY=VALUE", "set any option; may be repeated"),
        Flag(
            "print_config", ("-p", "-m", "--print-config"), bool, "",
            "print a complete metaq.toml with these values and exit",
        ),
        Flag(
            "insecure", ("--insecure",), bool, "",
            "allow a --host that other machines reach, and administration by them, without access control",
        ),
        Flag(
            "log_level", ("--log-level",), str, "LEVEL",
            "debug, info, warning or error, for the log on standard error (default info); set logLevel in FILE instead to change it later",
        ),
    ]  # fmt: skip


def without_plugins(words: Sequence[str]) -> list[str]:
    """Return a command line with `-FNAME=FILE` of 1.x as the flag `--NAME=FILE`."""
    starts = {f"-F{name}=": f"--{name}=" for name in PLUGINS}
    found = []
    for word in words:
        old = next((start for start in starts if word.startswith(start)), None)
        found.append(word if old is None else starts[old] + word.removeprefix(old))
    return found


def no_values(server: str) -> dict[str, Any]:
    """Return the values of a command line without flags."""
    empty: Mapping[type, Any] = {list: [], bool: False}
    return {flag.name: empty.get(flag.kind) for flag in flags_of(server)}


def words_of(server: str, values: Mapping[str, Any]) -> list[str]:
    """Return a command line with these values, which `read_plain` reads."""
    words: list[str] = []
    for flag in flags_of(server):
        value, text = values[flag.name], flag.texts[-1]
        if flag.kind is bool:
            words += [text] if value else []
        elif flag.kind is list:
            words += [word for one in value for word in (text, one)]
        elif value is not None:
            words.append(f"{text}={value}")
    return words


def read_plain(server: str, words: Sequence[str]) -> dict[str, Any] | None:
    """Return the values that a server's flags have; None: the line has something else, which typer reads or refuses."""
    flags = {text: flag for flag in flags_of(server) for text in flag.texts}
    values = no_values(server)
    values["settings"] = []
    rest = iter(words)
    for word in rest:
        text, joined, value = word.partition("=") if word.startswith("--") else (word, "", "")
        flag = flags.get(text)
        if flag is None or (flag.kind is bool and joined):
            return None
        if flag.kind is bool:
            values[flag.name] = True
            continue
        given = value if joined else next(rest, None)
        # A missing value is the next flag.
        if given is None or (not joined and given.startswith("-")):
            return None
        if flag.kind is list:
            values[flag.name].append(given)
        elif flag.kind is int:
            if not given.isascii() or not given.isdigit():
                return None
            values[flag.name] = int(given)
        else:
            values[flag.name] = given
    return values
