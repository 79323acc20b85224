"""The handler, at a running broker and at none."""

from __future__ import annotations

import ctypes
import json
import logging
import logging.config
import logging.handlers
import os
import queue
import subprocess
import sys
import threading

import pytest

import metaq
from metaq.admin import Admin
from metaq.errors import ClientForked, ConfigError, InvalidMessage
from metaq.logging_handler import JsonFormatter, MetaQHandler
from metaq.logging_handler.sender import LOG
from metaq.testing import EmbeddedBroker, free_port
from tests.support import PATIENCE, WHOLE_PATIENCE, environment, eventually

SOON = 20.0
"""What closing may take in a test before it gives up: far more than it needs."""


@pytest.fixture
def logger():
    """One of its own, which nobody else hears."""
    made = logging.Logger("shop.orders")  # noqa: LOG001  nobody else is to hear it
    yield made
    for handler in list(made.handlers):
        handler.close(0.1)


@pytest.fixture
def topic(request):
    return "logs-" + request.node.name.replace("[", "-").strip("]")[5:60]


@pytest.fixture
def handler(metaq_broker, topic, logger):
    """Of a service called shop, added to the logger."""
    made = MetaQHandler(metaq_broker.namesrv, topic=topic, service="shop")
    logger.addHandler(made)
    return made


@pytest.fixture
def nowhere():
    """An address where nobody listens."""
    return f"127.0.0.1:{free_port()}"


def stored(broker, topic):
    """All messages of the topic, oldest first."""
    with metaq.Reader(broker.namesrv, topic, start="earliest", stop_at_end=True) as reader:
        return sorted(reader, key=lambda message: (message.born_ms, message.body))


def texts(broker, topic):
    return sorted(json.loads(message.body)["message"] for message in stored(broker, topic))


def test_a_record_becomes_a_message(handler, logger, metaq_broker, topic):
    """JSON body, level as tag, service as property; nothing is lost, counted or left."""
    logger.warning("order %d is late", 17, extra={"order": 17})
    assert handler.flush(PATIENCE)
    [message] = stored(metaq_broker, topic)
    found = json.loads(message.body)
    assert (found["message"], found["level"], found["service"]) == ("order 17 is late", "WARNING", "shop")
    assert found["extra"] == {"order": 17}
    assert (found["process"], found["thread"]) == (os.getpid(), threading.current_thread().name)
    assert (message.tag, message.properties["service"], message.keys) == ("WARNING", "shop", ())
    assert (handler.sent, handler.waiting, handler.dropped) == (1, 0, {})


def test_text_of_a_formatter(metaq_broker, topic, logger):
    """Whatever a Formatter writes; an empty text too, which no broker takes, and levels without a name."""
    handler = MetaQHandler(metaq_broker.namesrv, topic=topic, service="", keys=["logger", "order", "service"])
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.info("plain", extra={"order": "a b\x01"})
    logger.log(15, "")
    assert handler.flush(PATIENCE)
    found = {message.body: (message.tag, message.keys) for message in stored(metaq_broker, topic)}
    assert found == {b"plain": ("INFO", ("shop.orders", "a_b")), b"\n": ("Level-15", ("shop.orders",))}
    assert "service" not in stored(metaq_broker, topic)[0].properties


def test_many_threads_lose_nothing(metaq_broker, topic, logger):
    """Ten thousand records of eight threads arrive, each once."""
    handler = MetaQHandler(metaq_broker.namesrv, topic=topic, service="shop", buffer_records_max=100_000)
    logger.addHandler(handler)

    def work(name):
        for number in range(1250):
            logger.info("%d-%d", name, number)

    threads = [threading.Thread(target=work, args=[name]) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert handler.flush(PATIENCE)
    assert texts(metaq_broker, topic) == sorted(f"{name}-{number}" for name in range(8) for number in range(1250))
    assert (handler.sent, handler.dropped) == (10_000, {})


def test_the_applications_own_producer_is_used_and_stays_open(metaq_broker, topic, logger):
    """Also one that serializes what it is given."""
    with metaq.Producer(metaq_broker.namesrv, serialize="json") as producer:
        handler = MetaQHandler(producer=producer, topic=topic, service="shop")
        logger.addHandler(handler)
        logger.info("hello")
        handler.close(PATIENCE)
        assert (handler.sent, handler.dropped) == (1, {})
        assert texts(metaq_broker, topic) == ["hello"]
        producer.send(topic, {"message": "still open"})
    assert texts(metaq_broker, topic) == ["hello", "still open"]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"name_servers": "a:b"}, ConfigError, "a:b"),
        ({"topic": "a b"}, ConfigError, "a b"),
        ({"buffer_records_max": 0}, ConfigError, "buffer_records_max=0"),
        ({"buffer_bytes_max": 1.5}, TypeError, "buffer_bytes_max"),
        ({"record_bytes_max": 10}, ConfigError, "record_bytes_max=10"),
        ({"linger": -1}, ConfigError, "linger"),
        ({"flush_seconds": "5"}, TypeError, "flush_seconds"),
        ({"keys": [7]}, TypeError, "keys"),
        ({"keys": ["abcdefghi"] * 9}, ConfigError, "keys names 9"),
        ({"service": 7}, TypeError, "service"),
        ({"service": "a\x01b"}, InvalidMessage, "service"),
        ({"producer": "x", "name_servers": None}, TypeError, "producer"),
        ({"producer": "x"}, ConfigError, "producer"),
    ],
)
def test_wrong_arguments_are_refused_at_once(nowhere, arguments, error, text):
    """Not by a thread, later."""
    with pytest.raises(error, match=text):
        MetaQHandler(**{"name_servers": nowhere, **arguments})


def test_no_name_server_is_refused_at_once(monkeypatch):
    """Neither given nor in the environment."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(ConfigError):
        MetaQHandler()


# ------------------------------------------------------------------ nothing breaks the application


class Broken:
    def __str__(self):
        raise RuntimeError("not today")

    __repr__ = __str__


def test_what_cannot_be_formatted_or_filtered_is_counted(metaq_broker, topic, logger, caplog):
    """The application goes on; it is said which record."""
    handler = MetaQHandler(metaq_broker.namesrv, topic=topic, service="shop")
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.info("%s", Broken())
    handler.addFilter(lambda record: record.missing)
    logger.info("x")
    assert handler.dropped == {"unformatted": 2}
    assert "a record of logger shop.orders" in caplog.text


def test_the_topic_hears_of_what_was_dropped(handler, logger, metaq_broker, topic):
    """A record of our own, with the reasons."""
    logger.info("before")
    assert handler.flush(PATIENCE)
    handler.addFilter(lambda record: bool(record.extra))
    logger.info("x")
    handler.filters.clear()
    logger.info("after")
    handler.close(PATIENCE)
    assert texts(metaq_broker, topic) == [
        "1 log records of shop were dropped (unformatted: 1)", "after", "before",
    ]  # fmt: skip


def test_the_clients_own_records_are_passed_over(handler, logger, metaq_broker, topic):
    """Those of `metaq` and its loggers, and of the threads that send, whatever their logger."""
    handler.emit(logging.makeLogRecord({"name": "metaq", "msg": "x"}))
    handler.handle(logging.makeLogRecord({"name": "metaq.client.shared.core", "msg": "x"}))
    assert handler.passed_over == 2
    logger.info("metaqish")
    assert handler.flush(PATIENCE)
    made = logging.makeLogRecord({"name": "asyncio", "msg": "x"})
    made.thread = next(thread.ident for thread in threading.enumerate() if thread.name == "metaq-logging")
    handler.handle(made)
    made.thread = next(thread.ident for thread in threading.enumerate() if thread.name == "metaq-client")
    handler.handle(made)
    assert (handler.passed_over, handler.flush(PATIENCE)) == (4, True)
    assert texts(metaq_broker, topic) == ["metaqish"]


def test_all_at_debug_on_the_root_does_not_feed_itself(metaq_broker, topic):
    """What sending logs, also the event loop's own debugging, makes no records to send."""
    program = f"""
import asyncio, logging, os
os.environ["PYTHONASYNCIODEBUG"] = "1"
import metaq
handler = metaq.MetaQHandler({metaq_broker.namesrv!r}, topic={topic!r}, service="shop")
logging.basicConfig(level=logging.DEBUG, handlers=[handler])
for number in range(100):
    logging.info("%d", number)
assert handler.flush({PATIENCE})
print(handler.sent, handler.waiting, handler.dropped)
"""
    done = run(program, PYTHONASYNCIODEBUG="1")
    assert done.stdout == "100 0 {}\n", done.stderr


def test_a_full_buffer_drops_and_says_so(nowhere, logger, caplog):
    """With no broker: bounded in records, and in bytes; nothing waits, and closing takes no longer than it may."""
    small = MetaQHandler(nowhere, service="shop", buffer_records_max=10)
    logger.addHandler(small)
    for number in range(100):
        logger.info("%d", number)
    assert (small.waiting, small.dropped) == (10, {"full": 90})
    logger.removeHandler(small)
    narrow = MetaQHandler(nowhere, service="shop", buffer_bytes_max=2000)
    logger.addHandler(narrow)
    for _ in range(100):
        logger.info("x" * 500)
    assert narrow.waiting in {2, 3}
    assert narrow.dropped["full"] == 100 - narrow.waiting
    eventually(lambda: "log records cannot be sent to topic business-logs" in caplog.text, what="the reason is said")
    assert not narrow.flush(0.01)
    left = narrow.waiting
    for handler in (small, narrow):
        handler.close(0.01)
    assert (narrow.waiting, narrow.dropped["closed"]) == (0, left)
    assert f"{left} log records for topic business-logs are lost" in caplog.text
    logger.info("too late")
    assert narrow.dropped["closed"] == left + 1
    assert "a record of logger shop.orders is lost" in caplog.text


def test_a_program_that_ends_early_is_told_why_its_records_are_lost(nowhere):
    """Once, and what it would have had to know: the address where nobody listens."""
    done = run(f"""
import logging, metaq
logging.getLogger().addHandler(metaq.MetaQHandler({nowhere!r}))
logging.warning("hello")
""")
    told = [line for line in done.stderr.splitlines() if line.startswith("metaq.logging_handler")]
    assert len([line for line in told if "are lost" in line]) == 1, done.stderr
    assert f"no name server of {nowhere} can be reached" in done.stderr
    assert "the client was closed" not in done.stderr


def test_records_wait_for_a_broker_that_is_away(topic, logger):
    """Killed and started again: all of what the buffer took arrives, and a record says how many others there were."""
    with EmbeddedBroker() as broker:
        handler = MetaQHandler(
            broker.namesrv, topic=topic, service="shop", buffer_records_max=500, producer_options={"timeout": 2.0}
        )
        logger.addHandler(handler)
        logger.info("before")
        assert handler.flush(PATIENCE)
        broker.kill()
        for number in range(700):
            logger.info("away %03d", number)
        assert not handler.flush(0.01)
        broker.start()
        assert handler.flush(PATIENCE)
        assert handler.dropped == {"full": 200}
        handler.close(PATIENCE)
        found = {}
        for message in stored(broker, topic):  # A try whose answer was lost is stored twice, under one id.
            found[message.message_id] = json.loads(message.body)["message"]
    assert sorted(found.values()) == [
        "200 log records of shop were dropped (full: 200)", *(f"away {number:03d}" for number in range(500)), "before",
    ]  # fmt: skip


def test_a_record_that_is_too_long_is_cut(metaq_broker, topic, logger):
    """At the limit of the handler; and at that of a broker that takes less."""
    with EmbeddedBroker(options={"maxMessageSize": 3000}) as broker:
        handler = MetaQHandler(broker.namesrv, topic=topic, service="shop", record_bytes_max=2_000_000)
        logger.addHandler(handler)
        noise = os.urandom(40_000).hex()  # so that it does not compress below the limit
        logger.info("short")
        logger.error(noise, extra={"order": 7})
        assert handler.flush(PATIENCE)
        bodies = {(found := json.loads(message.body))["level"]: found for message in stored(broker, topic)}
    assert bodies["INFO"]["message"] == "short"
    assert bodies["ERROR"]["message"].startswith(noise[:200])
    assert "characters cut]" in bodies["ERROR"]["message"]
    assert bodies["ERROR"]["extra"] == {"order": 7}
    assert handler.dropped == {}
    assert handler.shortened >= 1


def test_what_the_broker_refuses_is_dropped_and_the_rest_goes_on(metaq_broker, topic, logger, caplog):
    """A producer that was closed by the application takes nothing any more."""
    producer = metaq.Producer(metaq_broker.namesrv)
    handler = MetaQHandler(producer=producer, topic=topic, service="shop")
    logger.addHandler(handler)
    logger.info("one")
    assert handler.flush(PATIENCE)
    producer.close()
    logger.info("two")
    eventually(lambda: handler.dropped.get("refused"), what="the record is dropped")
    # Another thread says it, behind the count.
    eventually(lambda: "cannot be sent to topic" in caplog.text, what="it is said")


# ------------------------------------------------------------------ the thread


def test_the_thread_survives_what_is_raised_in_it(handler, logger, metaq_broker, topic, caplog):
    """SystemExit too; the records go on, and it is said."""
    logger.info("before")
    assert handler.flush(PATIENCE)
    [thread] = [thread for thread in threading.enumerate() if thread is handler._sender._thread]
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    logger.info("wakes it")
    eventually(lambda: "failed and is tried again: SystemExit" in caplog.text, what="it is said")
    logger.info("after")
    assert handler.flush(PATIENCE)
    assert texts(metaq_broker, topic) == ["after", "before", "wakes it"]


def test_a_dead_thread_is_started_again(handler, logger, metaq_broker, topic, caplog, monkeypatch):
    """By the next record."""
    with monkeypatch.context() as patch:
        patch.setattr(handler._sender, "_run", lambda: None)
        logger.info("before")
        eventually(lambda: not handler._sender._thread.is_alive(), what="the thread has ended")
    logger.info("after")
    assert handler.flush(PATIENCE)
    assert handler.restarts == 1
    assert "had died" in caplog.text
    assert texts(metaq_broker, topic) == ["after", "before"]


# ------------------------------------------------------------------ processes


def run(program, **variables):
    return subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", program],
        capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False, env=environment(**variables),
    )  # fmt: skip


def test_the_end_of_the_interpreter_sends_what_waits(metaq_broker, topic):
    """Nobody calls flush or close; nothing is said."""
    program = f"""
import logging, metaq
logging.getLogger().addHandler(metaq.MetaQHandler({metaq_broker.namesrv!r}, topic={topic!r}))
for number in range(1000):
    logging.warning("%03d", number)
"""
    done = run(program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert texts(metaq_broker, topic) == [f"{number:03d}" for number in range(1000)]


def test_the_end_of_the_interpreter_does_not_wait_for_ever(nowhere):
    """With no broker it says what is lost, after flush_seconds."""
    program = f"""
import logging, metaq
logging.getLogger().addHandler(metaq.MetaQHandler({nowhere!r}, flush_seconds=0.2))
logging.warning("x")
"""
    done = run(program)
    assert done.returncode == 0
    assert "1 log records for topic business-logs are lost" in done.stderr
    assert "Warning" not in done.stderr


FORKING = """
import logging, os, sys, warnings, metaq
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and newer warn of every fork beside threads
handler = metaq.MetaQHandler({namesrv!r}, topic={topic!r}, service="shop")
logging.getLogger().addHandler(handler)
logging.warning("parent")
{before}
pid = os.fork()
if pid == 0:
    assert (handler.waiting, handler.sent) == (0, 0), (handler.waiting, handler.sent)
    logging.warning("child")
    sys.exit(0 if handler.flush({patience}) and handler.sent == 1 else 3)
assert os.waitpid(pid, 0)[1] == 0
logging.warning("parent again")
"""


@pytest.mark.parametrize("before", ["", f"assert handler.flush({PATIENCE})"], ids=["unsent", "sent"])
def test_a_forked_child_sends_its_own(metaq_broker, topic, before):
    """A thread and a buffer of its own: what waits in the parent is sent once, by the parent."""
    done = run(FORKING.format(namesrv=metaq_broker.namesrv, topic=topic, before=before, patience=PATIENCE))
    assert (done.returncode, done.stderr) == (0, "")
    assert texts(metaq_broker, topic) == ["child", "parent", "parent again"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_of_multiprocessing_sends_before_it_ends(metaq_broker, topic, tmp_path, method):
    """It ends without atexit; the handler need not be closed by hand."""
    program = tmp_path / "program.py"
    program.write_text(f"""
import logging, multiprocessing, metaq

def work():
    handler = metaq.MetaQHandler({metaq_broker.namesrv!r}, topic={topic!r}, service="shop", linger=0.5)
    logging.getLogger().addHandler(handler)
    logging.warning("child")

if __name__ == "__main__":
    child = multiprocessing.get_context({method!r}).Process(target=work)
    child.start()
    child.join()
    raise SystemExit(child.exitcode)
""")
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False,
        env=environment(),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert texts(metaq_broker, topic) == ["child"]


def test_a_forked_child_of_a_given_producer_says_that_it_cannot_send(metaq_broker, topic):
    """The producer is the parent's: the child's records are counted, not lost in silence."""
    program = f"""
import logging, os, sys, metaq
with metaq.Producer({metaq_broker.namesrv!r}) as producer:
    handler = metaq.MetaQHandler(producer=producer, topic={topic!r})
    logging.getLogger().addHandler(handler)
    logging.warning("parent")
    pid = os.fork()
    if pid == 0:
        logging.warning("child")
        os._exit(0 if handler.dropped == {{"forked": 1}} else 3)
    assert os.waitpid(pid, 0)[1] == 0
    handler.close()
"""
    done = run(program)
    assert done.returncode == 0, done.stderr
    assert "Give name_servers" in done.stderr
    assert texts(metaq_broker, topic) == ["parent"]
    assert issubclass(ClientForked, Exception)


# ------------------------------------------------------------------ with the rest of logging


@pytest.fixture
def as_it_was():
    """The root logger's handlers and level, again."""
    root = logging.getLogger()
    handlers, level, disabled = list(root.handlers), root.level, LOG.disabled
    yield root
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:], LOG.disabled = handlers, disabled
    root.setLevel(level)


def configuration(broker, topic, **more):
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": "metaq.logging_handler.JsonFormatter", "service": "configured"}},
        "handlers": {
            "topic": {
                "class": "metaq.logging_handler.MetaQHandler", "name_servers": broker.namesrv, "topic": topic, "level": "INFO",
                "service": "shop", "flush_seconds": SOON, **more,
            }
        },
        "loggers": {"shop": {"handlers": ["topic"], "level": "DEBUG"}},
    }  # fmt: skip


def test_dict_config_makes_it_and_replaces_it(metaq_broker, topic, as_it_was):
    """The one before is closed by `logging`, and has sent what it had."""
    for number in range(3):
        logging.config.dictConfig(configuration(metaq_broker, topic, formatter="json"))
        logging.getLogger("shop").debug("not this")
        logging.getLogger("shop").info("configuration %d", number)
    [last] = logging.getLogger("shop").handlers
    assert last.flush(PATIENCE)
    last.close(PATIENCE)
    logging.getLogger("shop").handlers.clear()
    assert texts(metaq_broker, topic) == ["configuration 0", "configuration 1", "configuration 2"]
    assert {json.loads(one.body)["service"] for one in stored(metaq_broker, topic)} == {"configured"}


def test_behind_a_queue_handler(handler, metaq_broker, topic):
    """The record's own thread is told, not that of the listener."""
    waiting: queue.SimpleQueue = queue.SimpleQueue()
    logger = logging.Logger("queued")  # noqa: LOG001  as above
    logger.addHandler(logging.handlers.QueueHandler(waiting))
    listener = logging.handlers.QueueListener(waiting, handler)
    listener.start()
    logger.info("hello %s", "Anna")
    listener.stop()
    assert handler.flush(PATIENCE)
    [message] = stored(metaq_broker, topic)
    found = json.loads(message.body)
    assert (found["message"], found["thread"]) == ("hello Anna", threading.current_thread().name)


def test_whoever_holds_the_lock_of_the_handler_keeps_nobody_waiting(handler, logger):
    """`logging.shutdown` holds it while it flushes and closes."""
    done = threading.Event()
    handler.acquire()
    try:
        threading.Thread(target=lambda: (logger.info("x"), done.set())).start()
        assert done.wait(PATIENCE)
    finally:
        handler.release()


def test_what_is_said_goes_to_the_loggers_own_handlers(nowhere, logger, as_it_was, caplog):
    """To stderr only if nobody else would hear it."""
    handler = MetaQHandler(nowhere, service="shop", producer_options={"timeout": 1.0})
    logger.addHandler(handler)
    logger.info("x")
    eventually(lambda: "cannot be sent" in caplog.text, what="the reason is said")
    handler.close(0.01)
    assert {record.name for record in caplog.records} >= {"metaq.logging_handler"}


def test_a_subclass_of_the_json_formatter_changes_the_object(handler, logger, metaq_broker, topic):
    """It adds and takes away; the handler's own service is what the property says."""

    class Short(JsonFormatter):
        def fields(self, record):
            return {"text": record.getMessage(), "line": record.lineno}

    handler.setFormatter(Short())
    logger.info("hello")
    assert handler.flush(PATIENCE)
    [message] = stored(metaq_broker, topic)
    assert set(json.loads(message.body)) == {"text", "line"}
    assert message.properties["service"] == "shop"


def test_messages_can_be_found_by_their_keys(metaq_broker, topic, logger):
    """`keys` names attributes of the record."""
    with Admin(metaq_broker.namesrv) as admin:
        admin.create_topic(topic, queues=1)
    handler = MetaQHandler(metaq_broker.namesrv, topic=topic, service="shop", keys=["service", "order"])
    logger.addHandler(handler)
    logger.info("x", extra={"order": 4711})
    assert handler.flush(PATIENCE)
    [message] = stored(metaq_broker, topic)
    assert message.keys == ("shop", "4711")
