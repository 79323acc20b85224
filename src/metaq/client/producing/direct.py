"""Direct sends: the calling thread writes the request and reads the response itself, if nothing has to be waited for.

That is the first try of a `Producer.send`: on a direct link (`metaq.client.shared.direct_links`) that is there and
free, to a topic whose route is known, and with nothing of the same ordered stream under way. Everything else goes to
the loop; so does a try that failed, or was stored without its promise: the loop judges it as one of its own and goes on
with the tries and the time that are left.
"""

from __future__ import annotations

import itertools
import os
import weakref
from threading import get_ident

from metaq.client.conversation.call import FAULTS
from metaq.client.conversation.driver import outcome_of
from metaq.client.conversation.sending.send_frames import (
    PLACE_OF_ID,
    Form,
    SendFrames,
    StoredAnswer,
    sizes,
    stored_answer,
)
from metaq.client.conversation.sending.sending import Outgoing, Send, Stored
from metaq.client.producing.accumulator import Accumulator, BatchStream, Stay, checked_id
from metaq.client.shared.core import ClientCore
from metaq.client.shared.direct_links import LOOK_AT_SECONDS
from metaq.client.shared.futures import SendFuture
from metaq.client.shared.namespaces import plain_outcome, wrapped_call
from metaq.client.shared.routes import KnownRoutes
from metaq.client.shared.sending import FirstTry, Sender
from metaq.errors import MetaqError, RequestTimeout
from metaq.model import Message, MessageQueue, SendReceipt, SendStatus
from metaq.model.acl.secret import Credentials
from metaq.wire.codes import RequestCode, request_name
from metaq.wire.command import Command
from metaq.wire.extensions import WAIT_FIELD

LARGE_BYTES = 64 * 1024
"""Largest body on a direct link. Larger ones go by the loop: two hops more are nothing to them, and would keep the link
busy."""
_FORMS_MAX = 64
"""Prepared headers per queue, one for each tag. A program whose tags never repeat must not fill the memory."""
_TOPICS_MAX = 1024
_OK = SendStatus.SEND_OK  # Looking it up there costs more than making a receipt.


class _Target:
    """A queue that can be sent to."""

    __slots__ = ("address", "call", "forms", "frames", "queue")

    def __init__(self, queue: MessageQueue, call: Send, address: str, credentials: Credentials | None) -> None:
        """`queue` as users know it, `call` as brokers do; `credentials`: what requests are signed with."""
        self.queue, self.call, self.address = queue, call, address
        self.frames = SendFrames(call.group, call.queue, call.template, credentials)
        self.forms: dict[str | None, Form] = {}
        """Tag → header of messages that have nothing but a tag."""

    def form(self, message: Message) -> Form:
        """The header of messages like this one, which has no more than a tag."""
        if len(self.forms) >= _FORMS_MAX:
            self.forms = {}
        form = self.forms[message.tag] = self.frames.plain(message.property_text(PLACE_OF_ID))
        return form

    def other(self, queue_id: int) -> MessageQueue:
        """Another queue there: the one that the broker chose."""
        return self.queue._replace(queue_id=queue_id)

    def stored(self, answer: StoredAnswer) -> Stored:
        """Make the result of a response."""
        said = answer.extFields
        region, trace = said.MSG_REGION, said.TRACE_ON != "false"
        return Stored(self.other(said.queueId), said.queueOffset, _OK, said.msgId, region, trace)


class _Topic:
    """A topic's targets, valid as long as its list of queues is this very object."""

    __slots__ = ("by_queue", "count", "plain_queues", "queues", "targets")

    def __init__(self, queues: list[MessageQueue], targets: list[_Target]) -> None:
        self.queues, self.targets, self.count = queues, targets, len(targets)
        self.plain_queues = [target.queue for target in targets]
        self.by_queue = dict(zip(self.plain_queues, targets, strict=True))


class DirectSends:
    """The direct sends of one producer, from any thread. A result of None: nothing was sent, use the loop."""

    def __init__(self, core: ClientCore, accumulator: Accumulator, sender: Sender, group: str) -> None:
        shared = core.shared()
        self._core, self._accumulator, self._sender, self._group = core, accumulator, sender, group
        assert isinstance(shared.routes, KnownRoutes), "what is shared has no namespace"
        self._routes, self._namespace = shared.routes, core.namespace
        self._links, self._ready = shared.links, shared.links.ready
        self._waits = shared.transport.waits
        self._monotonic, self._now_ms = core.clock.monotonic, core.clock.now_ms
        self._timeout = accumulator.limits.timeout
        self._loop_thread = core.thread.ident
        self._topics: dict[str, _Topic] = {}
        """Topic's name at brokers → what is known of it."""
        self._turns = itertools.count(core.clock.random_below(1 << 16))
        """A rotation of its own: the sender's would skip a queue for each send that falls back to the loop."""
        self._avoid_slow = sender.rules.avoid_slow
        self._watched = self._avoid_slow or bool(accumulator.direct_observers)
        _live.add(self)

    def plain(self, topic: str, body: bytes, tag: str | None) -> SendReceipt | None:
        """Send a message of nothing but these. For producers without namespace and without observers.

        `body`: not empty, not too large, and not to be compressed. Raises as `send`; TypeError, InvalidMessage: the tag.
        """
        known = self._topics.get(topic)
        if known is None or known.queues is not self._routes.publish_queues_now(topic):
            known = self._learn(topic)
            if known is None:
                return None
        began = self._monotonic()
        target = known.targets[next(self._turns) % known.count] if not self._avoid_slow else self._next(known, began)
        form = target.forms.get(tag)
        if form is None:
            form = target.form(Message(topic, body, tag))
        return self._carry(target, began, form, body, tag, None, None, None, None)

    def send(
        self, message: Message, stream: BatchStream, message_id: str | None, timeout: float | None
    ) -> SendReceipt | None:
        """Send any message, in order with its stream if that has an order.

        Raises as a send by the loop; InvalidMessage, TypeError: the message or its id.
        """
        if not (timeout is None or timeout > 0) or len(message.body) > LARGE_BYTES:
            return None
        # Messages of the stream wait in the loop: this one must not overtake them.
        if stream.queue is not None and not stream.quiet:
            return None
        topic = self._namespace.wrapped(message.topic)
        known = self._topics.get(topic)
        if known is None or known.queues is not self._routes.publish_queues_now(topic):
            known = self._learn(topic)
            if known is None:
                return None
        began = self._monotonic()
        choose = stream.choose
        target = self._next(known, began) if choose is None else known.by_queue.get(choose(known.plain_queues))
        if target is None:
            return None
        return self._carry(target, began, None, message.body, None, message, stream, message_id, timeout)

    def _learn(self, topic: str) -> _Topic | None:
        """Learn a topic's targets, by its name at brokers. Raises ClientForked."""
        self._core.check_process()
        queues = self._routes.publish_queues_now(topic)
        # A guessed route may create the topic: the loop does that.
        if not queues or self._routes.is_guessed(topic):
            return None
        targets = []
        for queue in queues:
            data = self._routes.broker(queue.broker)
            if data is None or data.master is None:
                # No master: the loop tries the other brokers.
                return None
            # Receipts and errors show plain names; requests have the namespace's.
            plain = self._namespace.plain_queue(queue)
            outgoing = Outgoing(plain.topic, b"")
            call = Send(self._group, outgoing, plain, 0, self._sender.rules.template)
            targets.append(_Target(plain, wrapped_call(call, self._namespace), data.master, self._core.credentials))
        # Emptied at once: which topic is the oldest would cost a note per send.
        if len(self._topics) >= _TOPICS_MAX:
            self._topics = {}
        known = self._topics[topic] = _Topic(queues, targets)
        return known

    def forget(self) -> None:
        """Forget the topics in a forked child: the next send asks for them again, and is refused."""
        self._topics = {}

    def _next(self, known: _Topic, now: float) -> _Target:
        if not self._avoid_slow:
            return known.targets[next(self._turns) % known.count]
        return known.by_queue[self._sender.next_queue(known.plain_queues, now)]

    def _carry(
        self,
        target: _Target,
        began: float,
        form: Form | None,
        body: bytes,
        tag: str | None,
        message: Message | None,
        stream: BatchStream | None,
        message_id: str | None,
        timeout: float | None,
    ) -> SendReceipt | None:
        """Send on the direct link to the target, if there is one that is free: `body` with the header `form`, or `message`."""
        link = self._ready.get(target.address)
        if link is None:
            self._links.wish(target.address)
            return None
        # The loop waits, if the broker has told us to.
        if self._waits.until and self._waits.left(target.address):
            return None
        thread, accumulator = get_ident(), self._accumulator
        # The loop's own thread must not block.
        if thread == self._loop_thread:
            return None
        if not link.lock.acquire(False):
            others = stream or accumulator.streams.get(target.queue.topic)
            if (others is not None and not others.quiet) or not link.wait(thread, began):
                return None  # Where others send by the loop, one more in their batch costs least.
        try:
            # Noted before `takes` is asked: a producer that is being closed either waits for this send, or refuses it
            # here.
            accumulator.carried[thread] = opaque = link.opaque
            # Closed, or too much is waiting: the loop's way raises, or waits for room.
            if not accumulator.takes:
                return None
            # The broker may have closed an idle connection: a request into it would have an unknown outcome.
            if link.retired or (began - link.used_at > LOOK_AT_SECONDS and not link.fresh(began)):
                self._links.drop(target.address, link)
                return None
            seconds = timeout or self._timeout
            frame: bytes | None
            if form is not None:
                now_ms = self._now_ms()
                if isinstance(form, bytes):
                    header = form % (now_ms, link.prefix, link.number, opaque)
                else:
                    header = form.filled(now_ms, link.prefix, link.number, opaque, body)
                frame = b"%b%b%b" % (sizes(len(header) + len(body) + 4, len(header)), header, body)
                text = ""
            else:
                assert message is not None, "it has a form otherwise"
                text = link.message_id if message_id is None else checked_id(message_id)
                outgoing = accumulator.outgoing(message, text)
                if (frame := target.frames.frame(outgoing, self._now_ms(), opaque)) is None:
                    return None
            result: StoredAnswer | Stored | MetaqError | None
            try:
                sent = link.stream.begin(frame, seconds)
                link.used_at = began  # From here on the broker works, and so do we: what is done now costs no time.
                text = text or link.message_id
                link.prepare(began)
                data = link.stream.end(frame, sent, seconds, began + seconds)
                if (result := stored_answer(data, opaque)) is None:
                    result = self._read(target, link.answer(data, opaque, began + seconds))
            except BaseException as error:
                # No further request goes on this link: the answer to this one may still come on it.
                self._links.drop(target.address, link)
                if not isinstance(error, FAULTS):
                    raise  # An interrupt: the answer that is still to come is nobody's.
                result = _said(error, target.address, seconds)
            if isinstance(result, StoredAnswer) and result.extFields.metaqWaitMs:
                self._waits.told(target.address, result.extFields.metaqWaitMs)
            if not self._watched and isinstance(result, StoredAnswer):
                said = result.extFields
                queue = target.queue if said.queueId == target.queue.queue_id else target.other(said.queueId)
                return SendReceipt(text, queue, said.queueOffset, _OK, said.msgId)
            if form is not None:
                message = Message(target.queue.topic, body, tag)
                stream, outgoing = accumulator.stream(message.topic), accumulator.outgoing(message, text)
            assert stream is not None, "it has a form otherwise"
            ended = self._ended(stream, target, text, outgoing, timeout, began, result)
        finally:
            link.lock.release()
            accumulator.carried.pop(thread, None)
            if accumulator.waiting_for_carried:
                accumulator.notify_carried()
        # After the release of the link: the loop's tries may take seconds.
        return ended.result() if isinstance(ended, SendFuture) else ended

    def _read(self, target: _Target, command: Command) -> Stored | MetaqError:
        """Read an answer as a value: the outcome, a refusal, or the error that it cannot be read."""
        self._waits.told(target.address, command.ext.get(WAIT_FIELD, ""))
        try:
            stored: Stored = plain_outcome(
                outcome_of(target.call, command, target.address, self._core.credentials), self._namespace
            )
        except FAULTS as error:
            return error
        return stored

    def _ended(
        self,
        stream: BatchStream,
        target: _Target,
        message_id: str,
        outgoing: Outgoing,
        timeout: float | None,
        began: float,
        result: StoredAnswer | Stored | MetaqError,
    ) -> SendReceipt | SendFuture:
        """End a send: the receipt, after notifying observers; or the future of the send that the loop goes on with."""
        took = self._monotonic() - began
        if isinstance(result, StoredAnswer):
            result = target.stored(result)
        if isinstance(result, MetaqError) or (
            result.status is not _OK and self._sender.wants_better(stream.choose, stream.stay is Stay.STRICT)
        ):
            first = FirstTry(target.queue, result, took)
            return self._accumulator.go_on(stream, message_id, outgoing, timeout, first)
        if self._avoid_slow:
            self._sender.latencies.answered(target.queue.broker, took, began + took)
        if self._accumulator.direct_observers:
            self._accumulator.acknowledged(message_id, outgoing, result, began)
        return SendReceipt(message_id, result.queue, result.offset, result.status, result.offset_ids)


def _said(error: MetaqError, address: str, seconds: float) -> MetaqError:
    """The error of a direct link in the words of the loop's transport."""
    if not isinstance(error, RequestTimeout):
        return error
    return RequestTimeout(
        f"{address} did not answer {request_name(RequestCode.SEND_MESSAGE_V2)} within {seconds:.1f} s"
    )


_live: weakref.WeakSet[DirectSends] = weakref.WeakSet()


def _forget_in_child() -> None:
    for sends in list(_live):
        sends.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
