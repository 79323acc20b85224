"""Accounts and white lists (50 to 53)."""

from __future__ import annotations

from msgspec import field

from metaq.wire.headers.codec import Header


class PutAccountHeader(Header, kw_only=True):
    """UPDATE_AND_CREATE_ACL_CONFIG (50). Fields that are not there leave what there is; RocketMQ wants the secret each time."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    """RocketMQ always sends it, and so sets it each time."""
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    """`topicA=DENY,topicB=PUB|SUB`."""
    group_perms: str | None = None

    def __repr__(self) -> str:
        return f"PutAccountHeader(access_key={self.access_key!r})"  # not the secret


class DropAccountHeader(Header, kw_only=True):
    """DELETE_ACL_CONFIG (51)."""

    access_key: str


class PutWhiteHeader(Header, kw_only=True):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53)."""

    global_white_addrs: str
    """Address patterns, joined by commas."""
    acl_file_full_path: str | None = None
    """The file that has them; by default the main one."""


class ExplainAccessHeader(Header, kw_only=True):
    """EXPLAIN_ACCESS (30020), ours: whether a request would be allowed, and why."""

    # Not `accessKey`: what signs a request differs from it in one capital letter only.
    access_key: str = field(name="account", default="")
    action: str
    """Name of an action, in lower case."""
    resource: str = ""
    """A topic, or a group as its retry topic."""
    address: str
    signed: bool = True


class AclVersionReplyHeader(Header, kw_only=True):
    """Answer to GET_BROKER_CLUSTER_ACL_INFO (52)."""

    version: str
    """Data version of the main file, in JSON."""
    all_acl_file_version: str
    """Path of each file → its data version, in JSON."""
    broker_name: str
    broker_addr: str
    cluster_name: str
