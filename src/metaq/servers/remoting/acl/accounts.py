"""Accounts over the wire (50 to 54, 30020), with RocketMQ's codes and words. Only for accounts that have `admin: true`.

RocketMQ answers them to every account, and tells every secret. Without access control it answers 50, 51 and 53 with an
error that has no text, and 52 and 54 never.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from metaq.broker.acl import AccessControl, AccountFiles
from metaq.errors import Reason, Refused
from metaq.model.access import WHITE, Action
from metaq.model.acl.accounts import AclFile
from metaq.model.acl.changes import (
    AclChange,
    DropAccount,
    PutAccount,
    PutWhite,
    access_key_of,
    pattern_of,
    patterns_of,
    right_of,
    rights_of,
    secret_key_of,
)
from metaq.model.acl.judgement import ACL_EXCEPTION, explain, shown
from metaq.model.acl.secret import NO_SECRET
from metaq.servers.remoting.handlers import LATER, Answer, Call, NoHeader, Reply, handles
from metaq.wire import bodies, extensions, headers
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.headers import Header

log = logging.getLogger(__name__)

NO_ACCOUNTS: Final = "this server has no accounts: start it with aclEnable=true and a file of accounts (aclPath)"


class ServerName(Struct, frozen=True):
    """Who tells the versions of its accounts."""

    name: str
    address: str
    cluster: str


class AccountHandlers:
    """Handlers of one server.

    Args:
        access: its accounts; None: it has none, which each of these requests is told.
        who: the server.
    """

    def __init__(self, access: AccessControl | None, who: ServerName) -> None:
        self._access, self._who = access, who

    @handles(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, headers.PutAccountHeader, Action.ADMINISTER)
    def _put(self, call: Call[headers.PutAccountHeader]) -> Answer:
        key = call.header.access_key
        return self._change(
            call, lambda: _account(call.header), ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
            f"sets the account {shown(key)}",
            f"The accesskey[{shown(key)}] corresponding to accessConfig has been updated failed.",
        )  # fmt: skip

    @handles(RequestCode.DELETE_ACL_CONFIG, headers.DropAccountHeader, Action.ADMINISTER)
    def _drop(self, call: Call[headers.DropAccountHeader]) -> Answer:
        key = call.header.access_key
        return self._change(
            call, lambda: DropAccount(key), ResponseCode.DELETE_ACL_CONFIG_FAILED, f"deletes the account {shown(key)}",
            f"The accesskey[{shown(key)}] corresponding to accessConfig has been deleted failed.",
        )  # fmt: skip

    @handles(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, headers.PutWhiteHeader, Action.ADMINISTER)
    def _white(self, call: Call[headers.PutWhiteHeader]) -> Answer:
        header = call.header
        addresses = shown(header.global_white_addrs)
        return self._change(
            call, lambda: PutWhite(patterns_of(header.global_white_addrs), header.acl_file_full_path or ""),
            ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED,
            f"sets globalWhiteRemoteAddresses to {addresses}",
            f"The globalWhiteAddresses[{addresses}] has been updated failed.",
        )  # fmt: skip

    def _change(
        self, call: Call[Any], make: Callable[[], AclChange], failed: ResponseCode, doing: str, sentence: str
    ) -> Answer:
        """Answer when the change is on the disk and in force, or with RocketMQ's code and sentence, and the reason."""
        try:
            pending = self._files().change(make())
        except Refused as refused:
            return _failed(failed, sentence, refused)
        log.info("%s (%s) %s", call.caller.identity or "who is not known", call.session.remote, doing)

        def work() -> Answer:
            return None if pending.error is None else _failed(failed, sentence, pending.error)

        call.session.put_off(call.command)
        pending.when_done(lambda _error: call.session.answer_late(call.command, work))
        return LATER

    @handles(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, NoHeader, Action.ADMINISTER)
    def _versions(self, _call: Call[NoHeader]) -> Header:
        files, who = self._having().rules.files, self._who
        main = files.get(self._files().main, AclFile())
        return headers.AclVersionReplyHeader(
            version=bodies.data_version(main.version).decode(),
            all_acl_file_version=bodies.acl_versions({name: file.version for name, file in files.items()}).decode(),
            broker_name=who.name, broker_addr=who.address, cluster_name=who.cluster,
        )  # fmt: skip

    @handles(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, NoHeader, Action.ADMINISTER)
    def _rules(self, call: Call[NoHeader]) -> bytes:
        # Secrets only to who has proven to know one: an address of a white list may have many users.
        identity = call.caller.identity
        return bodies.acl_rules(self._having().rules, secrets=bool(identity) and not identity.startswith(WHITE))

    @handles(RequestCode.EXPLAIN_ACCESS, headers.ExplainAccessHeader, Action.ADMINISTER)
    def _explain(self, call: Call[headers.ExplainAccessHeader]) -> bytes:
        header = call.header
        action = next((one for one in Action if one.name.lower() == header.action), None)
        if action is None:
            raise Refused(Reason.INVALID, f"{shown(header.action)} is no action")
        made = explain(
            self._having().rules, header.address, header.access_key, action, header.resource, signed=header.signed
        )
        return extensions.explanation(made)

    def _having(self) -> AccessControl:
        if self._access is None:
            raise Refused(Reason.UNAVAILABLE, NO_ACCOUNTS)
        return self._access

    def _files(self) -> AccountFiles:
        files = self._having().files
        if files is None:
            raise Refused(Reason.UNAVAILABLE, NO_ACCOUNTS)
        return files


def _failed(code: ResponseCode, sentence: str, refused: Refused) -> Reply:
    return Reply(code=code, remark=f"{sentence} {ACL_EXCEPTION}: {refused.text}")


def _account(header: headers.PutAccountHeader) -> PutAccount:
    """Return the change that a request asks for. Raises Refused: it has a wrong part."""
    topics, groups, white = header.topic_perms, header.group_perms, header.white_remote_address
    # RocketMQ passes over empty permissions, but not over empty addresses and lists.
    return PutAccount(
        access_key_of(header.access_key),
        secret_key_of(header.secret_key) if header.secret_key else NO_SECRET,
        None if white is None else pattern_of(white),
        header.admin,
        right_of(header.default_topic_perm) if header.default_topic_perm else None,
        right_of(header.default_group_perm) if header.default_group_perm else None,
        None if topics is None else rights_of(topics, "topic"),
        None if groups is None else rights_of(groups, "group"),
    )
