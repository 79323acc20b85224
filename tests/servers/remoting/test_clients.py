"""Heartbeats, goodbyes, member lists and notices at the server."""

from __future__ import annotations

import pytest

from metaq.model import ConsumerView, Heartbeat, MessageModel, MessageQueue, QueueLocks
from metaq.model.filters.subscription import subscribe
from metaq.wire import bodies
from metaq.wire.codes import RequestCode, ResponseCode
from metaq.wire.extensions import level_of
from metaq.wire.headers import ConsumerGroupHeader, SendBackHeader, UnregisterClientHeader
from tests.servers.support import Client, open_server, tick


def members(client, group="G"):
    answer = client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupHeader(consumer_group=group))
    return bodies.consumer_ids_of(answer.body) if answer.code == 0 else answer.remark


def notices(client):
    return [
        command.ext["consumerGroup"]
        for command in client.received()
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and command.is_oneway
    ]


def test_a_heartbeat_makes_the_group_its_retry_topic_and_a_member(server):
    """A first heartbeat creates what a group needs, and the answer says that the broker is ours."""
    client = Client(server)
    answer = client.beat("mailer", {"orders": "paid"}, "a@1")
    assert (answer.code, answer.version, level_of(answer.ext) > 0) == (0, 409, True)
    assert server.broker.groups.get("mailer").retry_max == 16
    assert server.broker.topics.require("%RETRY%mailer").write_queues == 1
    assert members(client, "mailer") == ["a@1"]


def test_a_join_is_told_to_all_members_at_once(server):
    """Old and new members hear of the change, so that they share the queues anew."""
    one, two = Client(server), Client(server)
    one.beat(client_id="a@1")
    one.received()
    two.beat(client_id="b@1")
    assert notices(one) == ["G"]
    assert members(one) == ["a@1", "b@1"]
    one.beat(client_id="a@1")
    assert notices(two) == []


def test_a_changed_set_of_topics_is_told_a_newer_version_is_not(server):
    """Subscribing to another topic changes the group; a bump of the version alone does not."""
    one, two = Client(server), Client(server)
    for client, name in ((one, "a@1"), (two, "b@1")):
        client.beat(topics={"orders": "*"}, client_id=name)
    notices(one)
    two.beat(topics={"orders": "*"}, client_id="b@1", version=2)
    assert notices(one) == []
    two.beat(topics={"orders": "*", "bills": "*"}, client_id="b@1", version=3)
    assert notices(one) == ["G"]


@pytest.mark.parametrize("how", ["unregister", "close", "silence"])
def test_whoever_leaves_is_gone_and_the_others_hear_of_it(server, clock, how):
    """A goodbye, a closed connection and 120 s of silence all end a membership; Go clients only ever close."""
    one, two = Client(server), Client(server)
    one.beat(client_id="a@1")
    two.beat(client_id="b@1")
    notices(one)
    if how == "unregister":
        header = UnregisterClientHeader(client_id="b@1", consumer_group="G", producer_group="CLIENT_INNER_PRODUCER")
        assert two.ask(RequestCode.UNREGISTER_CLIENT, header).code == 0
    elif how == "close":
        two.leave()
    else:
        for _ in range(5):
            clock.advance(30)
            one.beat(client_id="a@1")
            tick(server)
    assert notices(one) == ["G"]
    assert members(one) == ["a@1"]


def test_notices_can_be_switched_off(tmp_path):
    """notifyConsumerIdsChangedEnable=false keeps the broker quiet."""
    with open_server(tmp_path, notify_consumer_ids_changed_enable=False) as (_, server):
        one = Client(server)
        one.beat(client_id="a@1")
        Client(server).beat(client_id="b@1")
        assert one.received() == []


def test_a_group_that_is_offline_has_no_members(server):
    """Code 1 and the group's name, as Java clients expect."""
    assert members(Client(server), "nobody") == "no consumer for this group, nobody"


def test_the_connection_lists_show_who_is_there(server):
    """203 and 204 list address, client id, language and version; offline groups are 206 and 1."""
    client = Client(server)
    client.beat(topics={"orders": "a || b"}, client_id="a@1", model=MessageModel.BROADCASTING)
    answer = client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader(consumer_group="G"))
    connections, consumer = bodies.connections_of(answer.body)
    assert [(one.client_id, one.address, one.language, one.version) for one in connections] == [
        ("a@1", client.session.remote, "JAVA", 409)
    ]
    assert consumer.model is MessageModel.BROADCASTING
    assert consumer.subscriptions["orders"].tags == {"a", "b"}
    offline = client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader(consumer_group="X"))
    assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE
    producers = client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "CLIENT_INNER_PRODUCER"})
    assert [one.client_id for one in bodies.connections_of(producers.body)[0]] == ["a@1"]
    assert client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "X"}).code == 1


def test_an_illegal_group_joins_nothing_and_harms_no_other(server):
    """A bad group name is refused by name, while the good one of the same heartbeat has joined."""
    client = Client(server)
    consumers = tuple(ConsumerView(group, {"orders": subscribe("orders")}) for group in ("good", "../bad"))
    body = bodies.heartbeat(Heartbeat("a@1", consumers, ()))
    answer = client.ask(RequestCode.HEART_BEAT, None, body)
    assert (answer.code, "../bad" in answer.remark) == (1, True)
    assert members(client, "good") == ["a@1"]
    assert server.broker.members.consumers.keys() == {"good"}


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"clientID":5}x', b'{"consumerDataSet":[]}', b"\xff\xfe", b"[" * 5000]
)
def test_a_broken_heartbeat_is_answered_not_fatal(server, body):
    """Wrong JSON in a body costs the sender an error answer and nobody anything else."""
    client = Client(server)
    assert client.ask(RequestCode.HEART_BEAT, None, body).code == 1
    assert client.send("orders").code == 0


def test_automatic_groups_are_limited(tmp_path):
    """Above autoCreateGroupsPerMinute a new group is refused; the known ones go on."""
    with open_server(tmp_path, auto_create_groups_per_minute=3) as (_, server):
        client = Client(server)
        codes = [client.beat(f"g{n}", client_id="a@1").code for n in range(5)]
        assert codes == [0, 0, 0, 26, 26]
        assert client.beat("g0", client_id="a@1").code == 0


def test_groups_are_not_made_when_that_is_off(tmp_path):
    """autoCreateSubscriptionGroup=false answers 26 to an unknown group."""
    with open_server(tmp_path, auto_create_subscription_group=False) as (_, server):
        client = Client(server)
        client.send("orders")
        assert client.pull("orders")[0].code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_filter_check_takes_tags_and_names_what_it_does_not_take(server):
    """46 is asked before a consumer with a filter starts."""
    client = Client(server)

    def check(kind: str, expression: str = "a") -> tuple[int, str | None]:
        text = '{"clientId":"a@1","group":"G","subscriptionData":{"expressionType":"%s","subString":"%s","topic":"t"}}'
        answer = client.ask(RequestCode.CHECK_CLIENT_CONFIG, None, (text % (kind, expression)).encode())
        return answer.code, answer.remark

    assert check("TAG") == (0, None)
    assert check("SQL92", "a > 5 AND b IS NULL") == (0, None)
    code, remark = check("SQL92", "a > 5 AND")
    assert code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert remark == "SQL filter, line 1, column 10: expected a property, a literal, NOT or '(', found the end"
    assert check("MINE") == (1, "The broker does not support consumer to filter message by MINE")
    server.broker.settings.change({"enablePropertyFilter": "false"})
    code, remark = check("SQL92", "a > 5")
    assert code == 1
    assert remark == "The broker does not support consumer to filter message by SQL92: enablePropertyFilter is false"


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (
            b'{"clientID":"go@1","consumerDataSet":[{"groupName":"mailer","subscriptionDataSet":[{"codeSet":["x"]}]}]}',
            ["go@1", "mailer", "consumerDataSet[0].subscriptionDataSet[0].codeSet[0] is 'x'", "get no messages"],
        ),
        (b'{"clientID":"go@1","consumerDataSet":[{"groupName":"bad name"}]}', ["go@1", "bad name"]),
        (b'{"clientID":', ["(unnamed)", "cannot be read"]),
        (b'{"clientID":"' + bytes(5 << 20) + b'"}', ["(unnamed)", "the limit is 2097152"]),
    ],
)
def test_a_refused_heartbeat_is_logged_with_client_group_and_field(server, clock, caplog, body, parts):
    """Its user only sees that nothing arrives, so the broker says why: at once, and then with a count."""
    client = Client(server)
    for _ in range(3):
        assert client.ask(RequestCode.HEART_BEAT, None, body).code == ResponseCode.SYSTEM_ERROR
    (record,) = [record for record in caplog.records if record.name == "metaq.broker.tables.members"]
    for part in [*parts, client.session.remote]:
        assert part in record.getMessage()
    assert len(record.getMessage()) < 1000
    clock.advance(20)
    tick(server)
    assert "2 more like this in the last" in caplog.text


def test_members_that_differ_are_told_one_by_one_and_others_as_rocketmq_does(server):
    """203 has what each member wants if they differ, and otherwise nothing that a RocketMQ has not."""
    one, two = Client(server), Client(server)
    header = ConsumerGroupHeader(consumer_group="G")
    one.beat(topics={"orders": "paid"}, client_id="a@1")
    two.beat(topics={"orders": "paid"}, client_id="b@1")
    body = bytes(one.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, header).body)
    assert b"metaq" not in body
    two.beat(topics={"orders": "open"}, client_id="b@1", version=2)
    connections, _ = bodies.connections_of(one.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, header).body)
    assert {one.client_id: one.wants for one in connections} == {"a@1": {"orders": "paid"}, "b@1": {"orders": "open"}}


def queues_of(topic: str, *ids: int) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(topic, "broker-a", queue_id) for queue_id in ids)


def lock(client: Client, client_id: str, queues: tuple[MessageQueue, ...], group: str = "G") -> list[int]:
    """Ids of the queues that were granted."""
    answer = client.ask(RequestCode.LOCK_BATCH_MQ, None, bodies.queue_locks(QueueLocks(group, client_id, queues)))
    assert answer.code == 0, answer.remark
    return [queue.queue_id for queue in bodies.locked_queues_of(answer.body)]


def test_queues_are_locked_and_let_go_at_the_server(server):
    """41 answers what was granted; 42 needs no answer, as Java sends it when it moves a queue on."""
    one, two = Client(server), Client(server)
    one.send("orders")
    assert lock(one, "a@1", queues_of("orders", 0, 1, 2, 9)) == [0, 1, 2]
    assert lock(two, "b@1", queues_of("orders", 0, 1, 2, 3)) == [3]
    body = bodies.queue_locks(QueueLocks("G", "a@1", queues_of("orders", 1)))
    one.feed(one.frame(RequestCode.UNLOCK_BATCH_MQ, None, body, oneway=True))
    assert one.received() == []
    assert lock(two, "b@1", queues_of("orders", 0, 1)) == [1]
    assert one.ask(RequestCode.UNLOCK_BATCH_MQ, None, body).code == 0


@pytest.mark.parametrize("how", ["close", "unregister"])
def test_a_dead_clients_lock_frees_after_a_minute_and_not_when_it_leaves(server, clock, how):
    """A Java member that is cut off consumes on for up to 30 s; nobody may start beside it."""
    one, two = Client(server), Client(server)
    one.send("orders")
    one.beat(topics={"orders": "*"}, client_id="a@1")
    two.beat(topics={"orders": "*"}, client_id="b@1")
    assert lock(one, "a@1", queues_of("orders", 0)) == [0]
    if how == "close":
        one.leave()
    else:
        one.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClientHeader(client_id="a@1", consumer_group="G"))
    assert members(two) == ["b@1"]
    for _ in range(3):
        clock.advance(20)
        two.beat(topics={"orders": "*"}, client_id="b@1")
        tick(server)
        assert lock(two, "b@1", queues_of("orders", 0)) == []
    clock.advance(0.5)
    assert lock(two, "b@1", queues_of("orders", 0)) == [0]


def test_locks_are_gone_after_a_restart(tmp_path):
    """As with RocketMQ: whoever asks first has them, and the members ask every 20 s."""
    for client_id in ("a@1", "b@1"):
        with open_server(tmp_path) as (_, server):
            client = Client(server)
            client.send("orders")
            assert lock(client, client_id, queues_of("orders", 0)) == [0]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "cannot be read"),
        (b'{"clientId":"a@1","consumerGroup":"G","mqSet":[{"queueId":"x"}]}', "mqSet[0].queueId"),
        (b'{"consumerGroup":"G","mqSet":[]}', "client id has 0 characters"),
        (b'{"clientId":"a@1","mqSet":[]}', "the group name is blank"),
        (b'{"clientId":"' + b"a" * (5 << 20) + b'"}', "the limit is 1048576"),
    ],
    ids=["empty", "no number", "no client id", "no group", "too long"],
)
def test_a_broken_request_for_locks_is_answered_not_fatal(server, body, says):
    """With what is wrong; the next request of the same connection is served."""
    client = Client(server)
    answer = client.ask(RequestCode.LOCK_BATCH_MQ, None, body)
    assert (answer.code, says in answer.remark) == (1, True), answer.remark
    assert client.send("orders").code == 0


def test_a_lock_of_a_group_that_may_not_be_made_is_refused(tmp_path):
    """26, as its pulls are."""
    with open_server(tmp_path, auto_create_subscription_group=False) as (_, server):
        client = Client(server)
        client.send("orders")
        body = bodies.queue_locks(QueueLocks("G", "a@1", queues_of("orders", 0)))
        assert client.ask(RequestCode.LOCK_BATCH_MQ, None, body).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_subscription_with_ten_thousand_topics_is_refused_and_nothing_of_it_is_kept(server, caplog):
    """A clear answer with the limit, a line in the log for the user's administrator, and the connection goes on."""
    client = Client(server)
    topics = {f"t{number}": subscribe(f"t{number}") for number in range(10_000)}
    answer = client.ask(
        RequestCode.HEART_BEAT, None, bodies.heartbeat(Heartbeat("a@1", (ConsumerView("G", topics),), ()))
    )
    assert (answer.code, answer.remark) == (1, "group G subscribes to more than 1024 topics")
    assert server.broker.members.consumers == {}
    assert "refused a heartbeat of client a@1" in caplog.text
    assert client.beat("G", {"orders": "*"}, "a@1").code == 0
    assert members(client) == ["a@1"]


@pytest.mark.parametrize("how", ["unregister", "close"])
def test_a_member_that_asked_for_it_stays_in_the_list_for_a_while(server, clock, how):
    """Static membership: nobody hears of its going or its coming back; when its time is over all do."""
    stays = Client(server)
    stays.beat("G", {"orders": "*"}, "z@1")
    view = ConsumerView("G", {"orders": subscribe("orders")}, keep_seconds=30)
    body = bodies.heartbeat(Heartbeat("a@static", (view,), ()))

    def leave(client: Client) -> None:
        if how == "close":
            client.leave()
        else:
            client.ask(RequestCode.UNREGISTER_CLIENT, UnregisterClientHeader(client_id="a@static", consumer_group="G"))

    leaves = Client(server)
    leaves.ask(RequestCode.HEART_BEAT, None, body)
    stays.received()
    leave(leaves)
    clock.advance(29)
    tick(server)
    assert members(stays) == ["z@1", "a@static"]
    back = Client(server)
    back.ask(RequestCode.HEART_BEAT, None, body)
    assert notices(stays) == []
    leave(back)
    clock.advance(31)
    tick(server)
    assert notices(stays) == ["G"]
    assert members(stays) == ["z@1"]


def test_a_group_whose_retry_topic_could_not_be_named_is_told_so_and_not_made(server, client):
    """When it joins, and when it gives back: it might pull without having joined."""
    group = "g" * 121
    client.send("orders")
    for answer in (
        client.beat(group, {"orders": "*"}),
        client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(offset=0, group=group, delay_level=0)),
    ):
        assert "has 121 characters, the limit is 120: the name of its retry topic" in answer.remark
    assert server.broker.groups.get(group) is None
