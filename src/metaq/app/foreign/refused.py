"""Keys of foreign configuration files whose neglect would break a promise: with any other value than those kept here, a
server does not start.

All other keys that mean nothing here are passed over with a warning, so that a RocketMQ file starts as it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from metaq.errors import ConfigError
from metaq.options import camel
from metaq.tls_options import TlsOptions


class Promise(NamedTuple):
    """What a key promises that no server of ours keeps."""

    kept: tuple[str, ...]
    """Values that ask for nothing, in any case; an empty value asks for nothing either."""
    why: str
    remedy: str


_NO_TLS: Final = "there is no such key of TLS here, and what it asks for would not be done"
_TLS_REMEDY: Final = "see [tls] in docs/configuration.md"
_NO_CONTROLLER: Final = (
    "RocketMQ 5's controller is not supported; brokers fail over automatically through ZooKeeper instead"
)
_FAILOVER: Final = "set it to false, and failover=zookeeper for automatic failover (docs/failover.md)"
_OF_METAQ1: Final = "it belongs in another file of MetaQ 1.x, and would have no effect here"
_NO_USERS: Final = "users of RocketMQ 5.3 are not supported, and without them everybody could do what was protected"
_LOCAL: Final = "write their accounts into a plain_acl.yml (aclEnable); set it to false only if everybody who can reach the port may do everything"


def _off(why: str, remedy: str = "set it to false") -> Promise:
    return Promise(("false",), why, remedy)


def _unset(why: str, remedy: str = "remove the key") -> Promise:
    return Promise((), why, remedy)


PROMISES: Final[Mapping[str, Promise]] = {
    # who may do what
    "authenticationEnabled": _off(_NO_USERS, _LOCAL),  # RocketMQ 5.3
    "authorizationEnabled": _off(_NO_USERS, _LOCAL),  # RocketMQ 5.3
    # copies
    "enableDLegerCommitLog": _off(
        "DLedger's log has another format than the commit log of a RocketMQ 4.9 broker", _FAILOVER
    ),
    "duplicationEnable": _off("duplication of the commit log is not supported"),
    "enableControllerMode": _off(_NO_CONTROLLER, _FAILOVER),  # RocketMQ 5, like the next three
    "enableControllerInNamesrv": _off(_NO_CONTROLLER, _FAILOVER),
    "enableSlaveActingMaster": _off("a slave does none of its master's tasks while the master is away", _FAILOVER),
    "allAckInSyncStateSet": _off(
        "only with failover=zookeeper sends wait for the whole in-sync set: here they would be answered without it",
        _FAILOVER,
    ),
    # what is stored where, and handed out from there
    "storePathCommitLog": Promise((), "several folders of the commit log are not supported", "name one folder"),
    "readOnlyCommitLogStorePaths": _unset(
        "several folders of the commit log are not supported, and nobody could read the messages there",
        "move their files into one folder and remove the key",
    ),
    "storeType": Promise(
        ("default",), "consume queues in RocksDB cannot be read", "set storeType=default if there are none"
    ),
    "enableConsumeQueueExt": _off(
        "entries of consume queues that point into consumequeue_ext cannot be read, so filters by tags would miss messages"
    ),
    "enableLmq": _off("light message queues (LMQ) are not supported, so their subscribers would get no message"),
    "enableMultiDispatch": _off(
        "light message queues (LMQ) are not supported, so their subscribers would get no message"
    ),
    "messageStorePlugIn": _unset("plug-ins of the store are Java classes, which this broker cannot run"),
    "startAcceptSendRequestTimeStamp": Promise(
        ("0",), "sends would be accepted before that time", "set it to 0, and start the broker at that time"
    ),
    # being found
    "clusterTest": _off("routes are not fetched from the name servers of another environment"),
    # MetaQ 1.x: the files of its master with a synchronous copy and of its slaves are no server.ini
    "slave": _unset(
        _OF_METAQ1,
        "remove it, and start the master of a pair with --samsa samsa_master.properties (docs/metaq1-slaves.md)",
    ),
    "slaveId": _unset(
        _OF_METAQ1, "remove it, and start the slave with --metaslave async_slave.properties (docs/metaq1-slaves.md)"
    ),
}
"""Key in a RocketMQ or MetaQ 1.x properties file → its promise. docs/configuration.md has this table."""


def refuse(key: str, value: Any, where: str, *, foreign: bool) -> None:
    """Raise ConfigError if a value of a key promises what is not kept.

    Args:
        key: in any spelling.
        value: as it stands there.
        where: file or flag.
        foreign: a RocketMQ properties file, in which commas separate folders.
    """
    name = camel(key) if "_" in key else key
    promise = PROMISES.get(name)
    if promise is None:
        # A key of TLS that RocketMQ may have and ours do not: TLS is meant, whatever it says.
        if not name.startswith("tls.") or name in TlsOptions.spellings():
            return
        promise = _unset(_NO_TLS, _TLS_REMEDY)
    text = str(value).strip().lower()
    if name == "storePathCommitLog":
        wrong = foreign and "," in text
    else:
        wrong = text != "" and text not in {value.lower() for value in promise.kept}
    if wrong:
        raise ConfigError(f"{key}={value} in {where}: {promise.why}; {promise.remedy}")
