"""Requests that make, change and delete consumer groups at one broker (200, 207), and copy their progress (314)."""

from __future__ import annotations

from metaq.client.conversation.call import Order
from metaq.model import GroupConfig
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode
from metaq.wire.command import Command, request


class PutGroup(Order, frozen=True):
    """Create a consumer group, or change its settings (200)."""

    group: GroupConfig

    @property
    def action(self) -> str:
        return f"create group {self.group.name}"

    def request(self) -> Command:
        return request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=bodies.group(self.group))


class DeleteGroup(Order, frozen=True):
    """Delete a group's settings, and with `progress` its progress (207)."""

    group: str
    progress: bool

    @property
    def action(self) -> str:
        return f"delete group {self.group}"

    def request(self) -> Command:
        header = headers.DeleteGroupHeader(group=self.group, remove_offset=self.progress)
        return request(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)


class CloneProgress(Order, frozen=True):
    """Give a group the progress of another in one topic, or in all (314), also where the other one does not read any more."""

    source: str
    target: str
    topic: str | None = None

    @property
    def action(self) -> str:
        return f"copy the progress of group {self.source} to group {self.target}"

    def request(self) -> Command:
        header = headers.CloneOffsetsHeader(source=self.source, target=self.target, topic=self.topic, offline=True)
        return request(RequestCode.CLONE_GROUP_OFFSET, header)
