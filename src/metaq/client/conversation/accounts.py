"""Requests about accounts, to one server that has some (50 to 52, 54, 30020)."""

from __future__ import annotations

from metaq.client.conversation.call import Call, Order
from metaq.model.acl.accounts import AclView
from metaq.model.acl.judgement import AccessExplanation
from metaq.model.acl.secret import NO_SECRET, Secret
from metaq.wire import bodies, extensions, headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, request


class SetAccount(Order, frozen=True):
    """Make or change an account. What is None stays as it is; `admin` is always set. RocketMQ wants the secret each time."""

    name: str
    admin: bool
    secret: Secret = NO_SECRET
    white: str | None = None
    default_topic: str | None = None
    default_group: str | None = None
    topics: tuple[str, ...] | None = None
    """`topicA=PUB|SUB`: all that the account has then."""
    groups: tuple[str, ...] | None = None

    @property
    def action(self) -> str:
        return f"set the account {self.name}"

    def request(self) -> Command:
        header = headers.PutAccountHeader(
            access_key=self.name,
            secret_key=self.secret.reveal() or None,
            white_remote_address=self.white,
            admin=self.admin,
            default_topic_perm=self.default_topic,
            default_group_perm=self.default_group,
            topic_perms=None if self.topics is None else ",".join(self.topics),
            group_perms=None if self.groups is None else ",".join(self.groups),
        )
        return request(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header)


class DeleteAccount(Order, frozen=True):
    """Delete an account."""

    name: str

    @property
    def action(self) -> str:
        return f"delete the account {self.name}"

    def request(self) -> Command:
        return request(RequestCode.DELETE_ACL_CONFIG, headers.DropAccountHeader(access_key=self.name))


class GetAccounts(Call[AclView], frozen=True):
    """List accounts and white lists, without secrets."""

    @property
    def action(self) -> str:
        return "list accounts"

    def request(self) -> Command:
        return request(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)

    def read(self, answer: Command) -> AclView:
        return bodies.acl_view_of(answer.body)


class Explain(Call[AccessExplanation], frozen=True):
    """Ask whether a request would be allowed, and by which rule."""

    name: str
    act: str
    """Name of an `Action`, in lower case."""
    resource: str
    """A topic, or a group as its retry topic."""
    address: str
    signed: bool = True

    @property
    def action(self) -> str:
        return f"explain what {self.name or 'nobody'} may"

    def request(self) -> Command:
        header = headers.ExplainAccessHeader(
            access_key=self.name, action=self.act, resource=self.resource, address=self.address, signed=self.signed
        )
        return request(RequestCode.EXPLAIN_ACCESS, header)

    def read(self, answer: Command) -> AccessExplanation:
        return extensions.explanation_of(answer.body)
