"""What brokers have for themselves, from one table."""

from __future__ import annotations

from metaq.model.topics.system import AUTO_CREATE_TOPIC, SCHEDULE_TOPIC, SEND_FORBIDDEN, SYSTEM_TOPICS, reply_topic
from metaq.model.topics.topic import users_topics


def test_users_see_none_of_them():
    """Not those of the table, nor those of names that a cluster or broker has, nor retries and dead letters."""
    own = ["DefaultCluster", "broker-a"]
    hidden = [*(topic.name for topic in SYSTEM_TOPICS), *own, reply_topic("DefaultCluster"), "%RETRY%G", "%DLQ%G"]
    assert users_topics([*hidden, "rmq_sys_METAQ_STAGE", "orders", "bills"], own) == ["bills", "orders"]


def test_clients_send_to_few_of_them():
    """What waits in the schedule topic was put there by the broker; the template may be written to, as in RocketMQ."""
    assert SCHEDULE_TOPIC in SEND_FORBIDDEN
    assert AUTO_CREATE_TOPIC not in SEND_FORBIDDEN
    assert "RMQ_SYS_TRANS_HALF_TOPIC" in SEND_FORBIDDEN
