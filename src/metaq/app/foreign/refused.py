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


_NO_TLS: Final = "there is no such key of TLS, and what it asks for would not be done"
_TLS_REMEDY: Final = "see [tls] in docs/configuration.md"
_NO_FAILOVER: Final = "a change of masters by itself is not in this version"
_NO_METAQ1_SLAVE: Final = "replication by MetaQ 1.x's own protocol is not in this version"
_NO_USERS: Final = "users of RocketMQ 5.3 are not in this version, and starting without them would open what was closed"
_LOCAL: Final = "write their accounts into a plain_acl.yml (aclEnable); only if all who can reach the port may do everything, set it to false"


def _off(why: str, remedy: str = "set it to false") -> Promise:
    return Promise(("false",), why, remedy)


def _unset(why: str, remedy: str = "remove the key") -> Promise:
    return Promise((), why, remedy)


PROMISES: Final[Mapping[str, Promise]] = {
    # who may do what
    "authenticationEnabled": _off(_NO_USERS, _LOCAL),  # RocketMQ 5.3
    "authorizationEnabled": _off(_NO_USERS, _LOCAL),  # RocketMQ 5.3
    # copies
    "enableDLegerCommitLog": _off("DLedger's log has another format than the commit log of a RocketMQ 4.9 broker"),
    "duplicationEnable": _off("a copy of the log that is written twice is not in this version"),
    "enableControllerMode": _off(_NO_FAILOVER),  # RocketMQ 5, like the next three
    "enableControllerInNamesrv": _off(_NO_FAILOVER),
    "enableSlaveActingMaster": _off(_NO_FAILOVER),
    "allAckInSyncStateSet": _off(f"{_NO_FAILOVER}: a send would be answered without that set"),
    # what is stored where, and handed out from there
    "storePathCommitLog": Promise((), "several folders of the commit log are not supported", "name one folder"),
    "readOnlyCommitLogStorePaths": _unset(
        "several folders of the commit log are not supported: nobody would get the messages there",
        "move their files into one folder and remove the key",
    ),
    "storeType": Promise(
        ("default",), "queues in RocksDB are not read here", "set storeType=default if there are none"
    ),
    "enableConsumeQueueExt": _off(
        "units of queues that point into consumequeue_ext are not read here: filters by tags would miss messages"
    ),
    "enableLmq": _off("light queues are not in this version: their subscribers would get no message"),
    "enableMultiDispatch": _off("light queues are not in this version: their subscribers would get no message"),
    "messageStorePlugIn": _unset("plug-ins of the store are Java classes, which this broker cannot run"),
    "startAcceptSendRequestTimeStamp": Promise(
        ("0",), "sends would be taken before that time", "set it to 0 and start the broker at that time"
    ),
    # being found
    "clusterTest": _off("routes are not fetched from another environment's name servers"),
    # MetaQ 1.x: the files of its master with a synchronous copy and of its slaves are no server.ini
    "slave": _unset(_NO_METAQ1_SLAVE, "remove the key; the broker's own settings are in its server.ini"),
    "slaveId": _unset(_NO_METAQ1_SLAVE, "start it from the server.ini, as a broker with a brokerId of its own"),
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
