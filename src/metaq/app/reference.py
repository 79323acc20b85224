"""`docs/configuration.md`, written from the option tables: `python -m metaq.app.reference > docs/configuration.md`."""

from __future__ import annotations

import itertools
import re
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

This page is the reference of all options of brokers, of name servers, and of the dashboard that `metaq up` starts: the key of each, its
type, its default, the values that are allowed, and what it does. It is for operators. Options of clients are in [client.md](client.md).

| section | options of |
|---|---|
| [`[broker]`](#broker) | a broker: addresses, replication, failover, access control, topics, groups, transactions, limits |
| [`[store]`](#store) | the files of a broker: folders, syncing to disk, retention |
| [`[metaq1]`](#metaq1) | a broker's service for clients of MetaQ 1.x (Metamorphosis, RocketMQ's predecessor) |
| [`[namesrv]`](#namesrv) | a name server |
| [`[tls]`](#tls) | TLS of a broker or a name server |
| [`[dashboard]`](#dashboard) | the dashboard of `metaq up` |

An option has RocketMQ's key if RocketMQ has the option, and every key may also be written in snake_case (`listen_port`). If nothing else is
said, sizes are in bytes and times in milliseconds. *Hot* options [can be changed in a running server](#change-options-of-a-running-server).
An extra, such as `http`, is installed by `pip install 'pymetaq[http]'`.

## Where options are set

If an option is set in several places, the first of these counts:

1. a change that was made [while the server ran](#change-options-of-a-running-server), by `metaq broker config set`;
2. a flag of the command, such as `--port`;
3. `-o key=value`, which works for every option but passwords. `-o section.key=value`, such as `-o namesrv.httpPort=8122`, names the section;
   `metaq up` needs that for keys that broker and name server share;
4. the configuration file of `-c FILE` (or `-f FILE`);
5. the environment variable `NAMESRV_ADDR`, for namesrvAddr of `metaq broker`.

The configuration file is one of three kinds:

- **`broker.conf` or `namesrv.properties` of RocketMQ**, unchanged. Keys of RocketMQ that have [no effect here](#keys-without-effect) are
  named in the log at the start, with the reason. A key that RocketMQ does not have either is named with the most similar valid key. Some
  keys [stop the start](#keys-that-stop-the-start), because the server would break a promise if it ignored them
  (`enableControllerMode=true`, for example).
- **`server.ini` of MetaQ 1.x**, unchanged ([metaq1-configuration.md](metaq1-configuration.md)). A wrong key stops the start.
- **`metaq.toml`**, with the sections of the table above. A wrong key stops the start.

`metaq broker --print-config` (or `-m`, or `-p`) prints a complete `metaq.toml` with the values in force, and a comment on each.

## Change options of a running server

Hot options can be changed without a restart, in the file or by a command.

**In the file.** A server that was started with `-c` reads its file again when it gets the signal SIGHUP (`kill -HUP PID`). Hot options whose
values have changed take effect at once, and the log has the old and the new value of each. Other options keep their values until a restart,
and the log says so. If anything in the file is wrong, nothing is changed. Flags and `-o` still have priority over the file. A server
without a file stops cleanly at SIGHUP, as it does when its terminal is closed.

**By a command.** `metaq broker config set` and `metaq namesrv config set` change hot options without a file, and so do
`mqadmin updateBrokerConfig` and `updateNamesrvConfig`. They work from the server's own machine, with access control for accounts with
`admin: true`. If one of several options is wrong, none is changed. From then on the new value has priority over the file, also after a
restart. The values are saved in `config/metaqOptions.json` in the folder of the store, at a name server beside `kvConfig.json`
([extensions](formats/extensions.md#files)). To use the value in the file again, stop the server and remove `metaqOptions.json`, or the
option in it. If this file cannot be read, the server does not start.

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
7 options more differ, as they are meant to (names, addresses, folders): --all shows them
```

- `show` prints in the column `from` where a value comes from: `file`, `command line`, `environment`, `wire` (it was set while the server
  ran), `default`, or a text that says what it follows from.
- The column `changes` says how an option can be changed: `at once` by `set`, by `reload` of the file (SIGHUP), or by a `restart`.
  `restart, then 10921` means that the file was read again, and has the value 10921, which waits for a restart.
- A broker name means its master. To see the options of a slave, give its address.
- `diff` compares all brokers, those of a cluster, or those that are named. It leaves out options that differ by nature, such as ports and
  folders.
- `metaq namesrv config` has the same three commands. All of them also work with brokers and name servers of RocketMQ, which return values
  only: neither defaults nor whether a change needs a restart.

## Log levels of a running server

`metaq broker config set broker-a logLevel=debug` changes the level of the whole log. `logLevels=metaq.broker=debug,metaq.net=warning` changes
the levels of parts of it, by the names that the lines of the log contain; `logLevels=` takes that back.

## Listening addresses

Without a file, and with a `metaq.toml`, a server listens on 127.0.0.1, so that only its own machine can connect. With another address
it starts only with `--insecure`, or with accounts (aclEnable, [security.md](security.md)). With a file of RocketMQ or of
MetaQ 1.x it listens on all addresses, as the original does, and warns if there are no accounts. Without accounts, everybody who can reach a broker may send,
read, and create and delete topics and groups.

Administrative requests are accepted from the server's own machine only: at a name server, deletion of routes, changes of write permissions and of
the KV configuration; at a broker, for example, reading its file again and changes of options, quotas and roles. `--insecure` or
`remoteAdministrationEnable=true` accepts them from other machines as well.

## Memory that clients take

`peerBytesMax` limits the memory that all clients together can make a server use, over all of its ports. These count:

- requests that were received in part (also limited by `halfReadBytesMax`), and answers that clients do not read (also limited by
  `unansweredBytesMaxTotal`);
- subscriptions and memberships from heartbeats, and pulls that wait for messages;
- requests that wait for the disk, for a table to be saved, or for a predicate;
- messages that clients of MetaQ 1.x have put into open transactions;
- at a name server, the registrations of brokers.

Objects of Python count with their size in memory, not with their bytes on the network. Above the limit, the connection that holds the most is
closed, and the log says what it held. A heartbeat or a registration that would make its connection the largest is refused instead, with the
reason.

Memory that belongs to no single connection has limits of its own: compiled SQL filters (a quarter of `peerBytesMax`, at most 128 MiB),
caches for the checks of pulls (an eighth), sends that outlive their connection and XA transactions (an eighth each, at most 64 MiB),
answers that wait for the disk (`unansweredBytesMax`), and some 10 KiB for each connection (`connectionsMax`). All that is counted makes a
broker's resident memory grow by at most one and a half times `peerBytesMax`, because Python and malloc keep some of the memory that was freed.

## The share of one client

One client gets at most a quarter of each table that clients fill. A client is a host, or with access control the account that signs.
The tables are: topics and groups that clients have created and that still exist, queue locks, waiting pulls, SQL filters in use and saved, static members that
are kept, open XA branches, and parts of staged transactions. In small tables the share is larger: one client may always create 64 topics, for example.
"""

_HEADINGS = {
    "broker": "## `[broker]`\n\nOptions of a broker, for `metaq broker` and `metaq up`.\n",
    "store": "## `[store]`\n\nOptions of a broker's files: where messages are kept, when they are synced to disk, and for how long they are kept.\n",
    "metaq1": "## `[metaq1]`\n\nOptions of a broker's service for clients of MetaQ 1.x. In a `server.ini` the same keys are in the sections [system] and "
    "[zookeeper],\nthe latter with the prefix `zk.`. Sections of topics are in [metaq1-configuration.md](metaq1-configuration.md).\n",
    "namesrv": "## `[namesrv]`\n\nOptions of a name server, for `metaq namesrv` and `metaq up`.\n",
    "tls": "## `[tls]`\n\nOptions of TLS, for brokers and name servers ([security.md](security.md#tls)). RocketMQ's keys, with dots, can be used "
    "unchanged in a\n`broker.conf`, in RocketMQ's `tls.properties`, and in the sections `[tls]`, `[broker]` and `[namesrv]` of a `metaq.toml`. "
    "Files of certificates and keys\nare read again when they change, and so is the file of `tls.config.file`: what it says about files and verification takes "
    "effect for new\nconnections. All other options need a restart.\n",
    "dashboard": "## `[dashboard]`\n\nOptions of the dashboard that `metaq up` starts ([dashboard.md](dashboard.md)). `metaq dashboard`, which runs alone, "
    "has flags for the\nsame. Changes need a restart.\n",
}

_PROMISES = """\
## Keys that stop the start

These keys of RocketMQ and MetaQ 1.x are not supported, and a server that ignored them would silently do something else than its file asks for.
So it does not start if a file or `-o` sets one of them to another value than the one in the second column. It does not start either with a key that
begins with `tls.` and is not in [`[tls]`](#tls).
"""


_WITHOUT_EFFECT = """\
## Keys without effect

These options of RocketMQ 4.9 have no effect here. A `broker.conf` or `namesrv.properties` may contain them: at the start the log has one line for
each reason, with the keys that were found. In a `metaq.toml`, and with `-o`, they are errors.
"""

_DOC_PAGE = re.compile(r"\bdocs/([\w./-]+\.md)")


def _linked(text: str) -> str:
    """Return a text of the tables with its mentions of pages, `docs/limits.md`, as links of this page."""
    here = text.replace("docs/configuration.md", "this page")
    return _DOC_PAGE.sub(r"[\1](\1)", here)


def markdown() -> str:
    """Return the whole page."""
    parts = [_INTRODUCTION]
    for section, table in SECTIONS.items():
        parts += [_HEADINGS[section], _table(table)]
    return "\n".join([*parts, _PROMISES, _promises(), _WITHOUT_EFFECT, _without_effect()])


def _without_effect() -> str:
    lines = ["| why | keys |", "|---|---|"]
    for reason, keys in itertools.groupby(REASONS, REASONS.__getitem__):
        lines.append(f"| {_linked(reason)} | {', '.join(f'`{key}`' for key in keys)} |")
    return "\n".join(lines) + "\n"


def _promises() -> str:
    lines = ["| keys | accepted value | why no other | what to do |", "|---|---|---|---|"]
    for promise, keys in itertools.groupby(PROMISES, PROMISES.__getitem__):
        names = ", ".join(f"`{key}`" for key in keys)
        kept = ", ".join(f"`{value}`" for value in promise.kept)
        if not kept:
            kept = "one folder" if "storePathCommitLog" in names else "empty"
        lines.append(f"| {names} | {kept} | {_linked(promise.why)} | {_linked(promise.remedy)} |")
    return "\n".join(lines) + "\n"


def _table(table: type[OptionTable]) -> str:
    lines = ["| key | type | default | allowed | hot | meaning |", "|---|---|---|---|---|---|"]
    hints = typing.get_type_hints(table)
    for item in table.listed():
        facts = item.metadata
        key = f"`{camel(item.name)}`" + "".join(f"<br>`{alias}`" for alias in facts["aliases"])
        default = "" if item.default in {None, ""} else f"`{_shown(item.default)}`"
        cells = [
            key,
            _kind(hints[item.name]),
            default,
            _allowed(facts),
            "yes" if facts["hot"] else "",
            _linked(facts["doc"]),
        ]
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
