"""The same for asyncio."""

from __future__ import annotations

import asyncio
import os

import pytest

from metaq.errors import ClientError, XaError
from metaq.metaq1 import Message, MetaClientConfig, Vote, Xid, aio
from tests.interop.metaq1 import OurServer
from tests.metaq1.stored import payloads


def test_two_tasks_have_branches_of_their_own(server: OurServer, config: MetaClientConfig, topic: str) -> None:
    """One is committed, the other rolled back; a third task's sends belong to none."""

    async def branch(producer: aio.XAMessageProducer, name: str, *, commit: bool) -> None:
        resource = producer.get_xa_resource()
        resource.set_transaction_timeout(50)
        xid = Xid(8, f"{name}{os.getpid()}".encode(), topic.encode())
        await resource.start(xid)
        for number in range(3):
            assert (await producer.send_message(Message(topic, f"{name}{number}".encode()))).offset == -1
            await asyncio.sleep(0)
        await resource.end(xid, resource.TMSUSPEND)
        await resource.start(xid, resource.TMJOIN)
        await resource.end(xid)
        assert await resource.prepare(xid) is Vote.OK
        assert xid in await resource.recover()
        assert resource.unreached == ()
        if commit:
            await resource.commit(xid)
        else:
            await resource.rollback(xid)
        await resource.forget(xid)
        assert resource.is_same_rm(producer.get_xa_resource())
        assert resource.address in repr(resource)

    async def main() -> None:
        async with aio.XAMetaMessageSessionFactory(config) as factory:
            producer = factory.create_xa_producer(unique_qualifier=f"aio-{topic}")
            await producer.publish(topic)
            async with asyncio.TaskGroup() as group:
                group.create_task(branch(producer, "a", commit=True))
                group.create_task(branch(producer, "b", commit=False))
                group.create_task(producer.send_message(Message(topic, b"plain")))
            await branch(producer, "c", commit=True)

    asyncio.run(main())
    found = sorted(payload.decode() for one in payloads(server.text, topic) for payload in one)
    assert found == ["a0", "a1", "a2", "c0", "c1", "c2", "plain"]


def test_errors(config: MetaClientConfig, topic: str) -> None:
    """Branches do not nest, and a start that fails binds nothing."""

    async def main() -> None:
        async with aio.XAMetaMessageSessionFactory(config) as factory:
            producer = factory.create_xa_producer(unique_qualifier=f"aio-{topic}")
            await producer.publish(topic)
            resource = producer.get_xa_resource()
            first, second = Xid(8, b"1", topic.encode()), Xid(8, b"2", topic.encode())
            await resource.start(first)
            with pytest.raises(ClientError, match="do not nest"):
                await resource.start(second)
            await resource.end(first, resource.TMFAIL)
            with pytest.raises(XaError) as error:
                await resource.commit(first, one_phase=True)
            assert error.value.name == "XA_RBROLLBACK"
            await resource.rollback(first)
            await resource.start(second)
            await resource.end(second)
            await resource.rollback(second)

    asyncio.run(main())
