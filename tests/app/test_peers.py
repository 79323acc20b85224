"""The link between brokers: found by name, bounded, and every question has one answer."""

from __future__ import annotations

import asyncio
import threading

from metaq.app import peers as peers_module
from metaq.app.peers import QUESTIONS_MAX, BrokerPeers
from metaq.broker.staged.peers import Finish, NoAnswer, Settle, StateOf
from metaq.model.transactions.staging import Decided, DecisionOutcome, Phase, TransactionDecision, TransactionState
from metaq.wire import staging
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.command import reply
from tests.scripted import BROKER, Fate, Later, ScriptedCluster
from tests.support import PATIENCE

T = "t1@broker-a"
STATE = TransactionState(T, Phase.COMMITTED)
DECISION = TransactionDecision(T, DecisionOutcome.ROLLBACK, decided_ms=1)
OURS = {RequestCode.STAGED_STATE, RequestCode.APPLY, RequestCode.DECIDE}


def told(peers, question, broker=BROKER):
    """The future of the answer to a question."""
    future = asyncio.get_running_loop().create_future()
    peers.ask(broker, question, future.set_result)
    return asyncio.wait_for(future, PATIENCE)


def run(name_servers, use, look_up_seconds=0.0):
    """What `use` returns of peers that are closed afterwards."""

    async def main():
        peers = BrokerPeers(name_servers, look_up_seconds)
        try:
            return await use(peers)
        finally:
            await peers.close()

    return asyncio.run(main())


def answering(asked):
    """A broker's answers, and which requests they are for."""
    bodies = {
        RequestCode.STAGED_STATE: staging.transaction_state(STATE),
        RequestCode.APPLY: staging.transaction_state(STATE),
        RequestCode.DECIDE: staging.decided(Decided(DECISION, first=False)),
    }
    return reply(asked, body=bodies[asked.code]) if asked.code in bodies else None


def test_each_question_is_asked_of_the_broker_with_that_name(tmp_path):
    """State, finish and settle: their requests name the broker that is meant, and their answers come back as values."""
    asked = []

    def script(command):
        if command.code in OURS:
            asked.append((command.code, command.ext, bytes(command.body)))
        return answering(command)

    with ScriptedCluster(tmp_path) as cluster:
        cluster.script = script

        async def use(peers):
            return [await told(peers, question) for question in (StateOf(T), Finish(DECISION), Settle(T))]

        assert run([cluster.namesrv], use) == [STATE, STATE, Decided(DECISION, first=False)]
    ext = {"transactionId": T, "bname": BROKER}
    assert asked[:2] == [(30004, ext, b""), (30003, ext, staging.apply_body(staging.ApplyBody(DECISION)))]
    assert asked[2] == (30002, {**ext, "settle": "true"}, b"")


def test_broker_that_nobody_knows_is_no_answer(tmp_path):
    """The text says where it was looked for."""
    with ScriptedCluster(tmp_path) as cluster:
        answer = run([cluster.namesrv], lambda peers: told(peers, StateOf("t@elsewhere"), "elsewhere"))
        assert answer == NoAnswer(f"no master of the broker elsewhere is registered at name servers {cluster.namesrv}")
    assert "no name servers" in run([], lambda peers: told(peers, StateOf(T))).why
    assert "no name server of" in run([cluster.namesrv], lambda peers: told(peers, StateOf(T))).why


def test_refusal_and_garbage_are_no_answer(tmp_path):
    """The peer's own words are in the text."""
    remarks = {}

    def script(command):
        return remarks.get(command.code) and remarks[command.code](command)

    with ScriptedCluster(tmp_path) as cluster:
        cluster.script = script
        remarks[RequestCode.STAGED_STATE] = lambda asked: reply(asked, ResponseCode.SYSTEM_ERROR, remark="no, thanks")
        remarks[RequestCode.APPLY] = lambda asked: reply(asked, body=b"{")

        async def use(peers):
            return await told(peers, StateOf(T)), await told(peers, Finish(DECISION))

        refused, garbage = run([cluster.namesrv], use)
    assert "no, thanks" in refused.why
    assert "cannot be read" in garbage.why


def test_broker_that_has_moved_is_looked_up_again(tmp_path):
    """One that hangs up was perhaps another one: the next question asks the name server before it asks again."""
    fates = [Fate.HANG_UP]

    def script(command):
        if command.code in OURS and fates:
            return fates.pop()
        return answering(command)

    with ScriptedCluster(tmp_path) as cluster:
        cluster.script = script

        async def use(peers):
            before = cluster.count(RequestCode.GET_BROKER_CLUSTER_INFO)  # the broker's own, at its start
            answers = [await told(peers, StateOf(T)) for _ in range(3)]
            return answers, cluster.count(RequestCode.GET_BROKER_CLUSTER_INFO) - before

        answers, look_ups = run([cluster.namesrv], use)
    assert isinstance(answers[0], NoAnswer)
    assert answers[1:] == [STATE, STATE]
    assert look_ups == 2


def test_look_ups_have_a_pause_between_them_and_one_serves_all_who_wait(tmp_path):
    """A broker that is away does not make the name servers busy."""
    with ScriptedCluster(tmp_path) as cluster:

        async def use(peers):
            before = cluster.count(RequestCode.GET_BROKER_CLUSTER_INFO)
            await asyncio.gather(*(told(peers, StateOf(T), "elsewhere") for _ in range(20)))
            await told(peers, StateOf(T), "elsewhere")
            return cluster.count(RequestCode.GET_BROKER_CLUSTER_INFO) - before

        assert run([cluster.namesrv], use, look_up_seconds=3600) == 1


def test_questions_to_one_broker_are_bounded_and_end_when_the_link_closes(tmp_path):
    """More than so many are not asked; each of the others is told when this broker stops."""
    never = threading.Event()
    with ScriptedCluster(tmp_path) as cluster:
        cluster.script = lambda asked: Later(never) if asked.code in OURS else None

        async def use(peers):
            waiting = [asyncio.ensure_future(told(peers, StateOf(T))) for _ in range(QUESTIONS_MAX)]
            await asyncio.sleep(0)
            over = await told(peers, StateOf(T))
            other = await told(peers, StateOf(T), "elsewhere")
            await peers.close()
            late = await told(peers, StateOf(T))
            return over, other, await asyncio.gather(*waiting), late

        over, other, ended, late = run([cluster.namesrv], use)
        never.set()
    assert f"{QUESTIONS_MAX} questions" in over.why
    assert "no master" in other.why
    assert ended == [NoAnswer("this broker stops")] * QUESTIONS_MAX
    assert late == NoAnswer("this broker stops")


def test_whoever_fails_over_an_answer_harms_no_other_question(tmp_path, caplog):
    """The failure is in the log."""

    def fail(_answer):
        raise ZeroDivisionError

    with ScriptedCluster(tmp_path) as cluster:
        cluster.script = answering

        async def use(peers):
            peers.ask(BROKER, StateOf(T), fail)
            return await told(peers, StateOf(T))

        assert run([cluster.namesrv], use) == STATE
    assert "failed" in caplog.text
    assert peers_module.log.name in {record.name for record in caplog.records}
