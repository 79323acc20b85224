"""Accounts and white lists, and the data versions of their files (52, 54)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from metaq.model.acl.accounts import Account, AccountView, AclRules, AclView
from metaq.model.topics.topic import DataVersion
from metaq.wire import beans, fastjson
from metaq.wire.beans import Value
from metaq.wire.bodies.parts import Body, Tree, data_version_of_tree, data_version_tree

HIDDEN: Final = "******"
"""In the place of a secret. Too short to be one: who writes back what was read does not make it the secret."""


def acl_versions(versions: Mapping[str, DataVersion]) -> bytes:
    """Encode the data version of each file."""
    return fastjson.dumps({name: data_version_tree(version) for name, version in versions.items()})


def acl_versions_of(body: Body) -> dict[str, DataVersion]:
    return {key.key(): data_version_of_tree(value) for key, value in beans.parse(body, "data versions").entries()}


def acl_rules(rules: AclRules, *, secrets: bool) -> bytes:
    """Encode the answer to GET_BROKER_CLUSTER_ACL_CONFIG (54): the accounts that count, and all white lists.

    Args:
        rules: of the server.
        secrets: whether their secrets are told.
    """
    white = [pattern.text for file in rules.files.values() for pattern in file.white]
    accounts = [_account(account, secrets=secrets) for account in rules.accounts.values()]
    return fastjson.dumps({"globalWhiteAddrs": white, "plainAccessConfigs": accounts})


def _account(account: Account, *, secrets: bool) -> Tree:
    return {
        "accessKey": account.access_key,
        "admin": account.admin,
        "defaultGroupPerm": account.default_group.text,
        "defaultTopicPerm": account.default_topic.text,
        "groupPerms": [f"{name}={right.text}" for name, right in account.groups.items()],
        "secretKey": account.secret_key.reveal() if secrets else HIDDEN,
        "topicPerms": [f"{name}={right.text}" for name, right in account.topics.items()],
        "whiteRemoteAddress": account.white.text,
    }


def acl_view_of(body: Body) -> AclView:
    """Decode the answer to GET_BROKER_CLUSTER_ACL_CONFIG (54), without its secrets."""
    tree = beans.parse(body, "accounts")
    accounts = tuple(_account_view(one) for one in tree["plainAccessConfigs"].objects())
    return AclView(tuple(tree["globalWhiteAddrs"].texts()), accounts)


def _account_view(tree: Value) -> AccountView:
    return AccountView(
        tree.text_in("accessKey"), tree.text_in("whiteRemoteAddress"), tree.boolean_in("admin"),
        tree.text_in("defaultTopicPerm"), tree.text_in("defaultGroupPerm"),
        tuple(tree["topicPerms"].texts()), tuple(tree["groupPerms"].texts()),
    )  # fmt: skip
