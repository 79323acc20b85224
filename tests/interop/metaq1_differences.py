"""Where our MetaQ 1.x server answers otherwise than MetaQ 1.4.6.2, on purpose: scenario → answer → what ours says, and why.

Scenarios are those of metaq1_scenarios.py, the original's answers stand in metaq1_recorded.json. `version` is masked in both:
the published jar has no build properties and says 0.1. Users read the same in docs/metaq1.md.
"""

from typing import NamedTuple


class Difference(NamedTuple):
    ours: str
    """The answer of ours in place of the original's."""
    why: str


_NOTHING_THERE = "before a commit there is nothing of it, not even an empty partition; 404 both"
_NULL = "the original says the class name and address of an object of its own"
_NOT_SLAVE = "the original says in Chinese which class has no handler"
_MISSING = "The topic `{t}` in partition `0` is not exists"

DIFFERENCES: dict[str, dict[str, Difference]] = {
    "put of a message that no get could deliver": {
        "0: result 200 1 '<id> 0 0'": Difference(
            "0: result 500 1 \"Put message to [broker 'meta://<broker>'] [partition '{t}-0'] failed.Detail:a message of 65537"
            " bytes for topic {t}, of which 20 are its header: no get could hand it out, the limit is 65536"
            ' (maxTransferSize)"',
            "the original stores what no consumer can ever read, nor anything behind it",
        ),
        "1: result 200 2 '<id> 0 65537'": Difference("1: result 200 2 '<id> 0 0'", "because nothing was stored before it"),
    },
    "put of the largest message": {
        "1: result 404 2 'Could not find message at position 0'": Difference(
            "1: value 2 65536 bytes: flag 0 65516 bytes 3912589116",
            "the original does not force frames of maxTransferSize or 512 KiB to the disk and hides them until it does",
        ),
    },
    "offset": {
        "4: result 200 18 '0'": Difference(
            "4: result 200 18 '25'", "the nearest frame at or before it: the original goes back to the beginning of the file"
        ),
        "5: result 200 19 '0'": Difference("5: result 200 19 '25'", "as above"),
    },
    "sync to a server that is no slave": {
        "0: result 503 7 '未注册请求处理器，请求处理器类为com.taobao.metamorphosis.network.SyncCommand'": Difference(
            "0: result 503 7 \"this broker is nobody's synchronous slave: it takes no sync\"", _NOT_SLAVE
        ),
    },
    "local transaction": {
        "3: result 404 1 'Could not find message at position 0'": Difference(f"3: result 404 1 '{_MISSING}'", _NOTHING_THERE),
    },
    "branch": {
        f"{line}: result 404 {opaque} 'Could not find message at position 0'": Difference(
            f"{line}: result 404 {opaque} '{_MISSING}'", _NOTHING_THERE
        )
        for line, opaque in ((4, 4), (8, 6))
    },
    "put into a transaction that the topic refuses": {
        "3: result 200 4 '<id> 0 -1'": Difference(
            "3: result 500 4 'Checksum failure,message may be corrupted when transfering on networking.'",
            "a checksum is compared inside of transactions, too",
        ),
        "5: result 200 100 '<id> 0 22'": Difference("5: result 200 100 '<id> 0 0'", "because of that"),
        "6: value 6 48 bytes: flag 0 b't3'; flag 0 b'behind'": Difference(
            "6: value 6 26 bytes: flag 0 b'behind'", "because of that"
        ),
    },
    "a put that names no transaction": {
        "0: result 500 1 \"Local transaction 'com.taobao.metamorphosis.transaction.NullTransactionId@<address>' has not"
        ' been started."': Difference("0: result 500 1 \"Local transaction 'null' has not been started.\"", _NULL),
    },
    "transactions of an unknown local key": {
        "3: result 500 4 \"Local transaction 'TX:10.0.0.5-1373971200000-1:9' has not been started.\"": Difference(
            "3: result 500 4 'XAException:code=-3,msg=Prepare not implemented on Local Transactions.'",
            "no local transaction can be prepared, known or not",
        ),
    },
    "branch prepared twice": {
        "4: result 200 5 '<id> 0 -1'": Difference(
            "4: result 500 5 \"XA transaction 'XID:7:6736:6231:uqF' is prepared: it takes no more messages.\"",
            "the vote was for what had been put",
        ),
    },
    "transactions without a key": {
        "0: result 500 1 'XAException:code=-4,msg=com.taobao.metamorphosis.transaction.NullTransactionId@<address> is not a"
        " valid xid'": Difference("0: result 500 1 'XAException:code=-4,msg=null is not a valid xid'", _NULL),
        **{
            f'{line}: result 500 {line + 1} "Local transaction'
            " 'com.taobao.metamorphosis.transaction.NullTransactionId@<address>' has not been started.\"": Difference(
                f"{line}: result 500 {line + 1} \"Local transaction 'null' has not been started.\"", _NULL
            )
            for line in (1, 2, 3)
        },
        '4: result 500 5 "class com.taobao.metamorphosis.transaction.NullTransactionId cannot be cast to class'
        " com.taobao.metamorphosis.transaction.LocalTransactionId (com.taobao.metamorphosis.transaction.NullTransactionId"
        " and com.taobao.metamorphosis.transaction.LocalTransactionId are in unnamed module of loader 'app')\"": Difference(
            "4: result 500 5 \"Local transaction 'null' has not been started.\"", _NULL
        ),
    },
}  # fmt: skip
"""Scenario → the original's answer, with the number of its step → the difference."""
