"""`docs/configuration.md`, written from the option tables: `python -m metaq.app.reference > docs/configuration.md`."""

from __future__ import annotations

import itertools
import sys
import typing
from typing import Any

from metaq.app.config_files.sections import SECTIONS
from metaq.app.foreign.passed_over import REASONS
from metaq.app.foreign.refused import PROMISES
from metaq.options import OptionTable, camel

_INTRODUCTION = """\
# Configuration

<!-- Written by `make docs` from the option tables; a test compares them. -->

A broker is configured by flags, by `-o key=value` for any option, by a file (`-c`, or `-f`), and by the environment
variable `NAMESRV_ADDR`; the first of these that has a value wins. The file is either

- a RocketMQ `broker.conf` or `namesrv.properties`, as it stands: keys [without effect here](#keys-without-effect) are named at the
  start with the reason, a key that RocketMQ has not either with the nearest one, and a key whose neglect would break a promise
  ([below](#keys-that-stop-the-start): `enableControllerMode=true`) stops the start;
- a `server.ini` of MetaQ 1.x, as it stands ([metaq1-configuration.md](metaq1-configuration.md)), where a wrong key
  stops the start; or
- a `metaq.toml` with the sections `[broker]`, `[store]`, `[metaq1]`, `[namesrv]`, `[tls]` and `[dashboard]`, where a wrong key stops the start,
  too.

`metaq broker --print-config` (or `-m`, `-p`) prints a complete `metaq.toml` with the values in force.

Keys are RocketMQ's where it has them, and may also be written in snake_case. Where nothing else is said, sizes are in
bytes and times in milliseconds.

**Changing a running server.** SIGHUP (`kill -HUP PID`) lets a server that was started with `-c` read its file again.
*Hot* options that are different now take effect at once; its log tells each with the old and the new value. What is
not hot stays as it was until a restart, and the log says so. A file that is wrong anywhere changes nothing. Flags and
`-o` beat the file, as at the start. A server without a file has nothing to read and stops cleanly at SIGHUP, as when its
terminal is closed.

`metaq broker config set` and `metaq namesrv config set` change hot options without a file, from this machine or by accounts with
`admin`; so do `mqadmin updateBrokerConfig` and `updateNamesrvConfig`. Several are set together or not at all. What was set beats the
file from then on. It is kept in `config/metaqOptions.json` in the store's folder, at a name server beside `kvConfig.json`
([extensions](formats/extensions.md#files)): to go back to what the file says, stop the server and remove that file, or the option from
it. A file that cannot be read stops the start.

```
$ metaq broker config show broker-a
option            value     default        from                                             changes
brokerName        broker-a  -              file (/etc/metaq/broker.conf)                    restart
fileReservedTime  48        72             wire (/var/lib/metaq/config/metaqOptions.json)   at once
regionId          eu        DefaultRegion  file (/etc/metaq/broker.conf)                    restart
vipPortEnable     true      false          the file is RocketMQ's                           restart
146 options with the default value: --all shows them
$ metaq broker config show broker-a deleteWhen maxMessageSize --json
$ metaq broker config set broker-a fileReservedTime=72 deleteWhen='04;16'
broker-a: fileReservedTime=72 (it was 48)
broker-a: deleteWhen=04;16 (it was 04)
$ metaq broker config diff --cluster DefaultCluster
option         broker-a  broker-b
regionId       eu        DefaultRegion
7 options that are each server's own differ: --all shows them
```

`show` says where each value comes from: `file`, `command line`, `environment`, `wire` (it was set while the server ran), `default`, or
what it follows from; and how it changes: `at once` by `set`, by `reload` of the file (SIGHUP), or by a `restart`; `restart, then 10921` is a value of a file that was read
again, and waits for one. A name means the master; the address of a slave shows the slave's. `diff` compares all brokers, those of a cluster, or those named; options that are
each broker's own, such as ports and folders, are left out. `metaq namesrv config` has the same three. With brokers and name servers
of RocketMQ all of them work, too, but these tell values alone: neither defaults nor what needs a restart.

**The log.** `logLevel` and `logLevels` change what is logged while a server runs: `metaq broker config set broker-a logLevel=debug`
for everything, `logLevels=metaq.broker=debug,metaq.net=warning` for parts, which are the names in the log's lines; `logLevels=` takes
that back.

**Which address.** Without a file, and from a `metaq.toml`, only this machine can connect (127.0.0.1). Another address
needs `--insecure`, or at a broker accounts (`aclEnable`, [security.md](security.md)). A file of RocketMQ or of MetaQ 1.x binds all
addresses, as those do, with a warning if there are none. Who can reach a broker may then send, read, and create and delete topics and
groups. A name server takes changes (a deleted topic's route, write permissions, KV values) from this machine only, as a
broker the request to read its file again: `--insecure` or `remoteAdministrationEnable=true` lets other machines, too.

**Memory that peers take.** All that clients can make a process keep counts for `peerBytesMax`, over all its ports together:
unfinished frames, answers that are not read, subscriptions and memberships of heartbeats, held pulls, requests that wait for
something to be saved, for the disk or for a predicate, what MetaQ 1.x clients have gathered in open transactions, and at a
name server what brokers have registered. Python's objects count with what they take, not with their bytes on the wire. Above
the limit the connection that holds the most is closed, and the log says what it held; a heartbeat or registration that would be
the most is refused instead, with the reason.
`halfReadBytesMax` and `unansweredBytesMaxTotal` are limits of the first two kinds within it. Beside it stand what belongs to no
single connection: compiled SQL filters (a quarter of it, at most 128 MiB), caches of the checks of pulls (an eighth), sends that
outlive their connection and transactions of XA (an eighth each, at most 64 MiB), answers that wait for the disk
(`unansweredBytesMax`), and some 10 KiB for each connection (`connectionsMax`). A broker's resident memory grows by no more than
one and a half times `peerBytesMax` by what is counted: Python and malloc keep some of what was freed.

**Shares.** Of each table that clients fill, one client, which is a host or who signs its requests, gets a quarter at most: topics and
groups that it has made and that are still there, queue locks, held pulls, SQL filters in use and saved, static members that are
kept, open XA branches and parts of staged transactions. Small tables are not shared.
"""

_HEADINGS = {
    "broker": "## `[broker]`\n\nWhat `metaq broker` and `metaq up` serve, and to whom.\n",
    "store": "## `[store]`\n\nHow the broker keeps messages.\n",
    "metaq1": "## `[metaq1]`\n\nWhat a broker does for clients of MetaQ 1.x. A `server.ini` has these keys in [system] and "
    "[zookeeper], there with\n`zk.` in front. [metaq1-configuration.md](metaq1-configuration.md) has the sections of "
    "topics.\n",
    "namesrv": "## `[namesrv]`\n\nWhat `metaq namesrv` and `metaq up` obey.\n",
    "tls": "## `[tls]`\n\nTLS of a broker or a name server ([security.md](security.md#tls)). In a `broker.conf`, in RocketMQ's `tls.properties` and "
    "anywhere in a\n`metaq.toml` the keys of RocketMQ stand as they are. The files are watched; the options themselves need a "
    "restart, except those that\na changed `tls.config.file` gives for files.\n",
    "dashboard": "## `[dashboard]`\n\nThe dashboard that `metaq up` starts beside itself ([dashboard.md](dashboard.md)); `metaq dashboard` has these as "
    "flags. They need a\nrestart.\n",
}

_PROMISES = """\
## Keys that stop the start

A server that passed these over would not do what its file asks for, and nobody would notice before it is too late. With
another value than those kept, in a file or by `-o`, it does not start; nor does it with a key that begins with `tls.` and
is not in [`[tls]`](#tls).
"""


_WITHOUT_EFFECT = """\
## Keys without effect

Options of RocketMQ 4.9 that set nothing here. A `broker.conf` or `namesrv.properties` may have them; the server names those that it
finds in one line of its log for each reason. By `-o`, and in a `metaq.toml`, they are errors.
"""


def markdown() -> str:
    """Return the whole page."""
    parts = [_INTRODUCTION]
    for section, table in SECTIONS.items():
        parts += [_HEADINGS[section], _table(table)]
    return "\n".join([*parts, _PROMISES, _promises(), _WITHOUT_EFFECT, _without_effect()])


def _without_effect() -> str:
    lines = ["| why | keys |", "|---|---|"]
    for reason, keys in itertools.groupby(REASONS, REASONS.__getitem__):
        lines.append(f"| {reason} | {', '.join(f'`{key}`' for key in keys)} |")
    return "\n".join(lines) + "\n"


def _promises() -> str:
    lines = ["| keys | kept | why not another | what to do |", "|---|---|---|---|"]
    for promise, keys in itertools.groupby(PROMISES, PROMISES.__getitem__):
        names = ", ".join(f"`{key}`" for key in keys)
        kept = ", ".join(f"`{value}`" for value in promise.kept)
        if not kept:
            kept = "one folder" if "storePathCommitLog" in names else "empty"
        lines.append(f"| {names} | {kept} | {promise.why} | {promise.remedy} |")
    return "\n".join(lines) + "\n"


def _table(table: type[OptionTable]) -> str:
    lines = ["| key | type | default | allowed | hot | meaning |", "|---|---|---|---|---|---|"]
    hints = typing.get_type_hints(table)
    for item in table.listed():
        facts = item.metadata
        key = f"`{camel(item.name)}`" + "".join(f"<br>`{alias}`" for alias in facts["aliases"])
        default = "" if item.default is None else f"`{_shown(item.default)}`"
        cells = [key, _kind(hints[item.name]), default, _allowed(facts), "yes" if facts["hot"] else "", facts["doc"]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kind(hint: Any) -> str:
    plain = next((kind for kind in typing.get_args(hint) if kind is not type(None)), hint)
    return {bool: "true/false", int: "number", float: "number", str: "text"}[plain]


def _allowed(facts: Any) -> str:
    if facts["choices"]:
        return ", ".join(f"`{choice}`" for choice in facts["choices"])
    low, high = facts["low"], facts["high"]
    if low is not None and high is not None:
        return f"{low} to {high}"
    return f"≥ {low}" if low is not None else f"≤ {high}" if high is not None else ""


if __name__ == "__main__":
    sys.stdout.write(markdown())
