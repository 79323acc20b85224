"""Steers RocketMQ's C++ client, through the ctypes bindings of its wheel. The protocol of lines is told in ../../program.py.

Runs as a program of its own: `driver.py FOLDER_OF_THE_WHEEL`.
"""

import itertools
import json
import os
import queue
import sys
import threading

sys.path.insert(0, sys.argv[1])

from rocketmq.client import (
    ConsumeStatus,
    Message,
    MessageModel,
    Producer,
    PushConsumer,
    SendStatus,
    TransactionMQProducer,
    TransactionStatus,
)
from rocketmq.ffi import dll

STATES = {
    "COMMIT_MESSAGE": TransactionStatus.COMMIT,
    "ROLLBACK_MESSAGE": TransactionStatus.ROLLBACK,
    "UNKNOW": TransactionStatus.UNKNOWN,
}
PROPERTIES = (
    "KEYS", "TAGS", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "colour", "UNIQ_KEY", "WAIT", "TRAN_MSG", "PGROUP",
    "ORIGIN_MESSAGE_ID", "CLUSTER",
)  # fmt: skip
"""The client cannot list a message's properties; these are asked for."""

_printing = threading.Lock()
_answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # what the library prints must not look like an answer
_running = {}
_asked = {}
_numbers = itertools.count(1)


def _print(line):
    with _printing:
        _answers.write(json.dumps(line) + "\n")
        _answers.flush()


def _ask(event, name, more):
    """Ask the test, and wait until it answers."""
    number, answer = next(_numbers), queue.SimpleQueue()
    _asked[number] = answer
    _print({"event": event, "name": name, "ask": number, **more})
    return answer.get()


def _text(value):
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _describe(message):
    found = {name: _text(message.get_property(name)) for name in PROPERTIES}
    return {
        "topic": message.topic, "body": _text(message.body), "queue_id": message.queue_id,
        "queue_offset": message.queue_offset, "reconsume_times": message.reconsume_times, "message_id": message.id,
        "tag": _text(message.tags), "keys": _text(message.keys), "delay_level": message.delay_time_level,
        "is_prepared": message.prepared_transaction_offset > 0,
        "waited_ms": message.store_timestamp - message.born_timestamp,
        "properties": {name: value for name, value in found.items() if value},
    }  # fmt: skip


def producer(name, group, namesrv, *, transactions=False, options=None):
    if transactions:

        def check(message):
            return STATES[_ask("check", name, _describe(message))]

        made = TransactionMQProducer(group, check)
    else:
        made = Producer(group, orderly=True)
    made.set_namesrv_addr(namesrv)
    for option, value in (options or {}).items():
        {"sendMsgTimeout": made.set_timeout}[option](value)
    made.start()
    _running[name] = made


def push(name, group, namesrv, topics, *, orderly=False, options=None):
    options = {**(options or {})}
    options.pop("consumeFromWhere", None)  # it cannot be set; a young queue is read from its first message
    model = MessageModel[options.pop("messageModel", "CLUSTERING")]
    made = PushConsumer(group, orderly=orderly, message_model=model)
    made.set_namesrv_addr(namesrv)
    made.set_instance_name(name)
    for option, value in options.items():
        {"consumeMessageBatchMaxSize": made.set_message_batch_max_size}[option](value)

    def receive(message):
        answer = _ask("consume", name, {"messages": [_describe(message)]})
        return ConsumeStatus.CONSUME_SUCCESS if answer["status"] == "ok" else ConsumeStatus.RECONSUME_LATER

    for topic, expression in topics.items():
        made.subscribe(topic, receive, expression)
    made.start()
    _running[name] = made


def _message(topic, body, *, times=1, tag=None, keys=None, delay_level=None, properties=None):
    message = Message(topic)
    message.set_body(body * times)
    if tag:
        message.set_tags(tag)
    if keys:
        message.set_keys(keys)
    if delay_level:
        message.set_delay_time_level(delay_level)
    for name, value in (properties or {}).items():
        message.set_property(name, value)
    return message


def send(name, topic, body, mode, *, key=None, **more):
    sender, message = _running[name], _message(topic, body, **more)
    if mode == "oneway":
        sender.send_oneway(message)
        return None
    sent = sender.send_sync(message) if mode == "sync" else sender.send_orderly_with_sharding_key(message, key)
    return _receipt(sent)


def _receipt(sent):
    return {"status": SendStatus(sent.status).name, "message_id": sent.msg_id, "queue_offset": sent.offset}


def send_in_transaction(name, topic, body, **more):
    def execute(message, _arguments):
        return STATES[_ask("execute", name, {"topic": message.topic, "body": _text(message.body)})]

    return _receipt(_running[name].send_message_in_transaction(_message(topic, body, **more), execute))


def shutdown(name):
    made = _running.pop(name, None)
    if made is not None:
        made.shutdown()


def _answer(operations, request):
    number = request.pop("id")
    try:
        _print({"id": number, "result": operations[request.pop("op")](**request)})
    except Exception as error:
        _print({"id": number, "error": {"class": type(error).__name__, "text": str(error)}})


def main():
    assert dll
    operations = {
        "producer": producer, "push": push, "send": send, "send_in_transaction": send_in_transaction, "shutdown": shutdown
    }  # fmt: skip
    for line in sys.stdin:
        request = json.loads(line)
        if "reply" in request:
            _asked.pop(request["reply"]).put(request["value"])
        else:
            threading.Thread(target=_answer, args=(operations, request), daemon=True).start()
    os._exit(0)  # the library's threads do not end


main()
