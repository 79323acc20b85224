"""What a broker of a group says when ZooKeeper, its folder or its options are not what they have to be; and that it acknowledges nothing then."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import make_digest_acl

from metaq.app.broker import RunningBroker, start_broker
from metaq.client.conversation.administration import Promote
from metaq.client.conversation.driver import ask
from metaq.client.shared.transport import Transport
from metaq.errors import BrokerError, ConfigError
from metaq.model.failover import GroupState
from metaq.options import BrokerOptions, StoreOptions
from metaq.store.upkeep.copy import copy
from metaq.wire.failover import group_state, group_state_of
from tests.interop.metaq1 import Nodes, Zookeeper
from tests.interop.test_failover import asked
from tests.support import PATIENCE, copy_folder

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("zookeeper")]

ROOT = "/metaq-failover/DefaultCluster"
SESSION_MS = 1500


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A group of the test's own."""
    return re.sub(r"\W", "-", request.node.name.removeprefix("test_"))[:60]


@pytest.fixture
def nodes(zookeeper: Zookeeper) -> Iterator[Nodes]:
    with zookeeper.nodes() as found:
        yield found


class Group:
    """Brokers of one name in this process, and their nodes."""

    def __init__(self, folder: Path, zookeeper: Zookeeper, nodes: Nodes, name: str) -> None:
        self.folder, self.zookeeper, self.nodes, self.name = folder, zookeeper, nodes, name
        self.state_path = f"{ROOT}/{name}/state"

    @contextlib.asynccontextmanager
    async def started(self, number: int, folder: str = "", **options: Any) -> AsyncIterator[RunningBroker]:
        """A member that runs. Args: folder: another one than its own."""
        given = {
            "listen_port": 0, "ha_listen_port": 0, "broker_name": self.name, "broker_id": number, "failover": "zookeeper",
            "failover_zookeeper": self.zookeeper.address, "failover_session_timeout": SESSION_MS, "in_sync_timeout": 1000,
            "slave_timeout": 500,
        }  # fmt: skip
        store = StoreOptions(
            store_path_root_dir=str(self.folder / (folder or f"member-{number}")), mapped_file_size_commit_log=1 << 20,
            max_hash_slot_num=1000, max_index_num=4000, disk_max_used_space_ratio=95,
        )  # fmt: skip
        broker = await start_broker(BrokerOptions(**{**given, **options}), store)
        try:
            yield broker
        finally:
            await broker.close()

    async def led(self, *numbers: int) -> None:
        """Let these members form the group, in sync and with a message, and end in order."""
        async with contextlib.AsyncExitStack() as stack:
            first = await stack.enter_async_context(self.started(numbers[0]))
            await until(lambda: leads(first))
            for number in numbers[1:]:
                await stack.enter_async_context(self.started(number))
            await until(lambda: {one.member for one in first._broker.in_sync.state.in_sync} == set(numbers))
            assert await send(first, b"kept") == ""

    def state(self) -> GroupState:
        return group_state_of(self.nodes.client.get(self.state_path)[0])

    def write(self, state: GroupState | bytes) -> None:
        """Put something in the place of the state, by hand."""
        self.nodes.client.set(self.state_path, state if isinstance(state, bytes) else group_state(state))

    def log_bytes(self, folder: str) -> dict[str, bytes]:
        return {one.name: one.read_bytes() for one in sorted((self.folder / folder / "commitlog").iterdir())}


@pytest.fixture
def group(tmp_path: Path, zookeeper: Zookeeper, nodes: Nodes, name: str) -> Group:
    return Group(tmp_path, zookeeper, nodes, name)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


def leads(broker: RunningBroker) -> bool:
    """Whether it leads, and acknowledges."""
    return broker._broker.in_sync.state is not None and broker._broker.in_sync.enough


def doubt(broker: RunningBroker) -> str:
    role = broker._broker.replicas.group_role
    return role.doubt if role is not None else ""


async def doubts(broker: RunningBroker, *texts: str) -> None:
    """Return when it says all of this. Before, on a busy machine, it may say that ZooKeeper does not answer in time."""
    await until(lambda: all(text in doubt(broker) for text in texts))


async def told(broker: RunningBroker, text: str) -> None:
    """Return when a send is refused with this text."""
    async with asyncio.timeout(PATIENCE):
        while text not in await send(broker, b"in doubt"):
            pass


async def send(broker: RunningBroker, body: bytes) -> str:
    """Send to this broker, whoever leads. Returns why it was refused; "": it was acknowledged."""
    (answer,) = await asyncio.to_thread(lambda: asked(broker.address, [body])())
    return "" if answer.code == 0 else answer.remark or "refused"


def run(work: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await work()

    asyncio.run(bounded())


async def refused(started: contextlib.AbstractAsyncContextManager[RunningBroker]) -> str:
    """Why a broker does not start."""
    with pytest.raises(ConfigError) as error:
        async with started:
            pass
    return str(error.value)


# ---------------------------------------------------------------------- two of one number


def test_two_brokers_with_one_number(group: Group) -> None:
    async def work() -> None:
        async with group.started(1) as first:
            await until(lambda: leads(first))
            text = await refused(group.started(1, "another"))
            assert text == (
                f"brokerId=1 of {group.name} is taken by the broker at {first.address}: give each broker of the group a number and a folder "
                "of its own"
            )
            assert await send(first, b"goes on") == ""

    run(work)


def test_a_copied_folder_beside_the_one_that_it_was_copied_from(group: Group) -> None:
    async def work() -> None:
        async with group.started(1) as first:
            await until(lambda: leads(first))
            assert await send(first, b"x") == ""
            copy_folder(group.folder / "member-1", group.folder / "copy")
            text = await refused(group.started(1, "copy"))
            assert f"brokerId=1 of {group.name} is taken by the broker at {first.address}" in text
            assert await send(first, b"goes on") == ""

    run(work)


def test_the_folder_of_another_number(group: Group) -> None:
    async def work() -> None:
        await group.led(1)
        text = await refused(group.started(2, "member-1"))
        assert f"brokerId=2: this folder is that of member 1 of {group.name} " in text
        assert "metaqFailover.json" in text

    run(work)


# ---------------------------------------------------------------------- nodes that somebody has written to


GARBAGE = b"\x00\xffnot JSON, and " + b"long" * 50


def test_garbage_in_the_state_node_at_the_start_and_while_it_leads(group: Group) -> None:
    async def work() -> None:
        async with group.started(1) as first:
            await until(lambda: leads(first))
            good = group.state()
            group.write(GARBAGE)
            await doubts(first, group.state_path, "cannot be read")
            await told(first, group.state_path)
            assert len(doubt(first)) < 700
            group.write(good)
            await until(lambda: leads(first))
            assert await send(first, b"well again") == ""
            assert group.state().epoch == good.epoch
        group.write(GARBAGE)
        text = await refused(group.started(1))
        assert group.state_path in text and "cannot be read" in text

    run(work)


def test_garbage_in_the_node_of_a_member(group: Group) -> None:
    """Whose it is is told; the leader does not know who lives, and says so."""

    async def work() -> None:
        async with group.started(1) as first:
            await until(lambda: leads(first))
            path = f"{ROOT}/{group.name}/live/2"
            group.nodes.client.create(path, GARBAGE, ephemeral=True)
            await doubts(first, path)
            await told(first, path)
            group.nodes.client.delete(path)
            await until(lambda: leads(first))
            group.nodes.client.create(path, GARBAGE, ephemeral=True)
            text = await refused(group.started(3))
            assert path in text
            group.nodes.client.delete(path)

    run(work)


def test_nodes_that_others_may_not_touch(group: Group) -> None:
    async def work() -> None:
        auth = {"failover_zookeeper_auth": "digest:metaq:secret"}
        async with group.started(1, **auth) as first:
            await until(lambda: leads(first))
            text = await refused(group.started(2))
            assert "failoverZookeeperAuth" in text and f"{ROOT}/{group.name}" in text and "secret" not in text
            text = await refused(group.started(2, failover_zookeeper_auth="digest:metaq:wrong"))
            assert "failoverZookeeperAuth" in text and "wrong" not in text
            async with group.started(2, **auth) as second:
                await until(lambda: 2 in {one.member for one in first._broker.in_sync.state.in_sync})
                assert not leads(second)
            admin = group.nodes.client
            admin.add_auth("digest", "metaq:secret")
            admin.set_acls(group.state_path, [make_digest_acl("other", "one", all=True)])
            await doubts(first, "failoverZookeeperAuth")
            await told(first, "failoverZookeeperAuth")

    run(work)


def test_a_chroot_that_is_not_there(group: Group) -> None:
    async def work() -> None:
        where = f"{group.zookeeper.address}/no/such"
        text = await refused(group.started(1, failover_zookeeper=where))
        assert "there is no node /no/such in ZooKeeper" in text
        assert text.endswith("create /no/such in ZooKeeper, or correct failoverZookeeper")
        assert group.nodes.client.exists("/no") is None

    run(work)


def test_a_zookeeper_that_is_not_there(
    group: Group, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker starts, and takes nothing."""
    monkeypatch.setattr("metaq.app.failover.running.FIRST_LOOK_SECONDS", 0.5)

    async def work() -> None:
        async with group.started(1, failover_zookeeper="127.0.0.1:1") as alone:
            assert "does not lead" in await send(alone, b"x") or "slave" in await send(alone, b"x")

    with caplog.at_level(logging.ERROR):
        run(work)
    assert "ZooKeeper at 127.0.0.1:1 does not answer" in caplog.text
    assert "this broker takes no messages before it does" in caplog.text


# ---------------------------------------------------------------------- ZooKeeper's data lost, or of before


def test_a_zookeeper_that_was_emptied(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody begins the group anew by himself: others may have more. `failoverAdopt` says that this one has the most."""

    async def work() -> None:
        async with group.started(1) as first:
            await until(lambda: leads(first))
            assert await send(first, b"kept") == ""
            group.nodes.client.delete(f"{ROOT}/{group.name}", recursive=True)
            wanted = (
                f"ZooKeeper knows nothing of {group.name}, and this broker has been in its epoch 1: restore ZooKeeper's data, or start the "
                "broker with the longest log, when no other one runs, with failoverAdopt=true, so that it begins the group anew"
            )
            await until(lambda: doubt(first) == wanted)
            await told(first, wanted)
        assert await refused(group.started(1)) == wanted
        end = sum(map(len, group.log_bytes("member-1").values()))
        async with group.started(1, failover_adopt=True) as first:
            await until(lambda: leads(first))
            assert group.state().epoch >= 2
            assert await send(first, b"goes on") == ""
            text = await refused(group.started(2, failover_adopt=True))
            assert text == (
                f"failoverAdopt=true, and member 1 of {group.name} runs at {first.address}: stop all others first"
            )
        assert end
        # Left where it is, the option does nothing: the others of the set may have more by then.
        state = group.state()
        async with group.started(1, failover_adopt=True) as first:
            await until(lambda: leads(first))
            assert group.state().history == state.history and group.state().epoch == state.epoch + 1
        assert (
            f"failoverAdopt=true has no effect: what ZooKeeper has of {group.name} fits this broker's log"
            in caplog.text
        )

    run(work)


def test_a_zookeeper_from_an_old_backup(group: Group) -> None:
    """Its epochs go back: a broker that has been in a later one takes part in nothing."""

    async def work() -> None:
        await group.led(1, 2)
        old = group.state()
        for _ in range(2):
            await group.led(1)
        now = group.state()
        assert now.epoch > old.epoch
        wanted = (
            f"ZooKeeper says that {group.name} is in epoch {old.epoch}, and this broker has been in epoch {now.epoch}: ZooKeeper was "
            "restored from an older backup. Nothing was changed; start the broker with the longest log, when no other one runs, with "
            "failoverAdopt=true, so that it goes on from there"
        )
        group.write(old)
        before = group.log_bytes("member-1")
        assert await refused(group.started(1)) == wanted
        assert group.log_bytes("member-1") == before
        group.write(now)
        async with group.started(1) as first:
            await until(lambda: leads(first))
            epoch = group.state().epoch
            group.write(old)
            said = wanted.replace(f"been in epoch {now.epoch}", f"been in epoch {epoch}")
            await until(lambda: doubt(first) == said)
            await told(first, "older backup")
        async with group.started(1, failover_adopt=True) as first:
            await until(lambda: leads(first))
            assert group.state().epoch > epoch
            async with group.started(2):
                await until(lambda: {one.member for one in group.state().in_sync} == {1, 2})

    run(work)


# ---------------------------------------------------------------------- folders of another log


def test_the_folder_of_another_group(group: Group, tmp_path: Path) -> None:
    async def work() -> None:
        await group.led(1)
        other = Group(tmp_path / "other", group.zookeeper, group.nodes, f"{group.name}-other")
        await other.led(1, 2)
        async with group.started(1) as first:
            await until(lambda: leads(first))
            shutil.copytree(other.folder / "member-2", group.folder / "stranger")
            before = group.log_bytes("stranger")
            text = await refused(group.started(2, "stranger"))
            assert "the log in this folder belongs to another group of replicas (history " in text
            assert f"than {group.name} in ZooKeeper" in text
            assert text.endswith("Nothing was changed; start this broker with its own folder, or with an empty one")
            assert group.log_bytes("stranger") == before

    run(work)


def test_a_folder_with_messages_that_was_in_no_group(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    """It is no begin of the leader's log: it follows nobody, nothing of it is cut, and it never comes into the set."""

    async def work() -> None:
        async with group.started(2, failover="off", broker_id=0) as alone:
            for at in range(20):
                assert await send(alone, b"of its own %d" % at) == ""
        before = group.log_bytes("member-2")
        async with group.started(1) as first:
            await until(lambda: leads(first))
            assert await send(first, b"x") == ""
            async with group.started(2):
                await until(lambda: "is not a begin of that of" in caplog.text)
                assert {one.member for one in group.state().in_sync} == {1}
            assert group.log_bytes("member-2") == before

    with caplog.at_level(logging.ERROR):
        run(work)
    assert f"the log in this folder is not a begin of that of {group.name}: " in caplog.text
    assert "nothing was changed. Start this broker with its own folder, or with an empty one" in caplog.text


def test_an_empty_folder_under_an_old_number_is_a_new_member(group: Group) -> None:
    """It comes into the set with its own token, when it has all. The old folder is not in the set any more."""

    async def work() -> None:
        await group.led(1, 2)
        async with group.started(1) as first:
            await until(lambda: leads(first))
            before = group.state().place_of(2)
            async with group.started(2, "new"):
                await until(lambda: (place := group.state().place_of(2)) is not None and place != before)
                assert await send(first, b"y") == ""
                await until(lambda: first._broker.in_sync.copied == first._broker.store.log.end)

    run(work)


# ---------------------------------------------------------------------- by hand


def test_promotion_of_a_member_outside_the_set(group: Group) -> None:
    """It is refused, with what it costs; --force does it, and what only others have is cut off there and kept."""

    async def work() -> None:
        await group.led(1, 2)
        async with group.started(1) as first:
            await until(lambda: leads(first))
            await until(lambda: {one.member for one in group.state().in_sync} == {1})
            assert await send(first, b"only here") == ""
        transport = Transport()
        try:
            async with group.started(2) as second:
                end = second._broker.store.log.end
                with pytest.raises(BrokerError) as error:
                    await ask(transport, second.address, Promote())
                text = str(error.value)
                assert (
                    f"this broker is not in the in-sync set of {group.name} (member 1): it may lack what was acknowledged"
                    in text
                )
                assert f"Its log ends at {end}" in text
                assert (
                    "With --force it leads with what it has; what only others have is cut off there, and kept" in text
                )
                assert group.state().leader != 2
                state = await ask(transport, second.address, Promote(force=True))
                assert state.leads
                await until(lambda: leads(second))
                assert await send(second, b"of the second") == ""
                async with group.started(1) as first:
                    await until(lambda: {one.member for one in group.state().in_sync} == {1, 2})
                    (cut,) = first._broker.roles.state().cuts
                    assert cut.log_offset == end and cut.records >= 1
        finally:
            await transport.close()

    run(work)


def test_a_restored_copy_does_not_lead_by_itself(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    """It may lack what was acknowledged since. By force it does, with what it has."""

    async def work() -> None:
        await group.led(1)
        copy(group.folder / "member-1", group.folder / "restored")
        transport = Transport()
        try:
            async with group.started(1, "restored") as restored:
                await until(
                    lambda: (
                        f"this broker does not lead {group.name}: this broker is not in the in-sync set" in caplog.text
                    )
                )
                assert not leads(restored)
                with pytest.raises(BrokerError, match="this broker is not in the in-sync set"):
                    await ask(transport, restored.address, Promote())
                await ask(transport, restored.address, Promote(force=True))
                await until(lambda: leads(restored))
                assert await send(restored, b"goes on") == ""
        finally:
            await transport.close()

    run(work)
