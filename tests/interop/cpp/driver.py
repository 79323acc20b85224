"""Steers RocketMQ's C++ client, through the ctypes bindings of its wheel. The line protocol is told in ../driver.py.

Runs as a program of its own: `driver.py FOLDER_OF_THE_WHEEL`.
"""

import ctypes
import json
import os
import queue
import sys
import threading
import time

sys.path.insert(0, sys.argv[1])

from rocketmq.client import ConsumeStatus, Message, MessageModel, Producer, PushConsumer, RecvMessage, SendStatus
from rocketmq.exceptions import ffi_check
from rocketmq.ffi import _CMQException, _CSendResult, dll

ANSWER_SECONDS = 300
_Succeeded = ctypes.CFUNCTYPE(None, _CSendResult, ctypes.c_void_p, ctypes.c_void_p)
_Failed = ctypes.CFUNCTYPE(None, _CMQException, ctypes.c_void_p, ctypes.c_void_p)
dll.SendAsync.argtypes = [ctypes.c_void_p, ctypes.c_void_p, _Succeeded, _Failed, ctypes.c_void_p]  # not in the binding

_printing = threading.Lock()
_answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # what the library prints must not look like an answer
_running = {}


def _print(line):
    with _printing:
        _answers.write(json.dumps(line) + "\n")
        _answers.flush()


def producer(name, group, namesrv, *, access_key=None, secret_key=""):
    made = Producer(group, orderly=True, timeout=300_000)
    made.set_namesrv_addr(namesrv)
    if access_key is not None:
        made.set_session_credentials(access_key, secret_key, "")
    made.start()
    _running[name] = made


def _message(topic, body, tag=None, keys=None, delay_level=None, properties=None):
    message = Message(topic)
    message.set_body(body)
    if tag:
        message.set_tags(tag)
    if keys:
        message.set_keys(keys)
    if delay_level:
        message.set_delay_time_level(delay_level)
    for name, value in (properties or {}).items():
        message.set_property(name, value)
    return message


def _receipt(sent):
    return {"status": SendStatus(sent.sendStatus).name, "id": sent.msgId.decode(), "queue_offset": sent.offset}


_answered = queue.SimpleQueue()
"""(number of the message in its call of `_send_async`, receipt), from the library's threads."""


@_Succeeded
def _succeeded(sent, _message, number):
    _answered.put((number or 0, _receipt(sent)))  # ctypes shows a 0 as None


@_Failed
def _failed(error, _message, number):
    _answered.put((number or 0, {"status": "FAILED", "id": error.msg.decode(), "queue_offset": -1}))


def _send_async(sender, messages):
    """Start all sends, then wait for all answers; receipts in the order of the messages."""
    for number, message in enumerate(messages):
        ffi_check(dll.SendAsync(sender._handle, message, _succeeded, _failed, number))
    answers = dict(_answered.get(timeout=ANSWER_SECONDS) for _ in messages)
    return [answers[number] for number in range(len(messages))]


def _send_batch(sender, messages):
    """One request with all messages; its one receipt."""
    batch = dll.CreateBatchMessage()
    for message in messages:
        ffi_check(dll.AddMessage(batch, message))
    sent = _CSendResult()
    ffi_check(dll.SendBatchMessage(sender._handle, batch, ctypes.byref(sent)))
    ffi_check(dll.DestroyBatchMessage(batch))
    return [_receipt(sent)]


def send(producer, topic, bodies, mode, ordering_key=None, **options):
    sender = _running[producer]
    if mode in ("async", "batch"):
        messages = [_message(topic, body, **options) for body in bodies]
        return (_send_async if mode == "async" else _send_batch)(sender, messages)
    receipts = []
    for body in bodies:
        message = _message(topic, body, **options)
        if mode == "oneway":
            sender.send_oneway(message)
            continue
        sent = (
            sender.send_sync(message)
            if mode == "sync"
            else sender.send_orderly_with_sharding_key(message, ordering_key)
        )
        receipts.append({"status": sent.status.name, "id": sent.msg_id, "queue_offset": sent.offset})
    return receipts


def consumer(name, group, namesrv, topics, *, broadcasting=False, fail_tag=None, access_key=None, secret_key=""):
    made = PushConsumer(group, message_model=MessageModel.BROADCASTING if broadcasting else MessageModel.CLUSTERING)
    made.set_namesrv_addr(namesrv)
    made.set_instance_name(name)
    if access_key is not None:
        made.set_session_credentials(access_key, secret_key, "")

    def receive(message: RecvMessage):
        _print(
            {
                "event": "message",
                "consumer": name,
                "topic": message.topic,
                "tag": _text(message.tags),
                "keys": _text(message.keys),
                "body": _text(message.body),
                "id": message.id,
                "queue_id": message.queue_id,
                "queue_offset": message.queue_offset,
                "reconsume_times": message.reconsume_times,
                "born_ms": message.born_timestamp,
                "store_ms": message.store_timestamp,
                "received_ms": int(time.time() * 1000),
                "colour": _text(message.get_property("colour")),
            }
        )
        failed = fail_tag is not None and _text(message.tags) == fail_tag
        return ConsumeStatus.RECONSUME_LATER if failed else ConsumeStatus.CONSUME_SUCCESS

    for topic, expression in topics.items():
        made.subscribe(topic, receive, expression)
    made.start()
    _running[name] = made


def _text(value):
    return value.decode() if isinstance(value, bytes) else value


def shutdown(name):
    _running.pop(name).shutdown()


def main():
    operations = {"producer": producer, "consumer": consumer, "send": send, "shutdown": shutdown}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            _print({"result": operations[request.pop("op")](**request)})
        except Exception as error:
            _print({"error": repr(error)})
    _answers.flush()
    os._exit(0)  # the library's threads do not end


main()
