"""A webhook: a member of a consumer group that posts what it gets to a URL.

Everything that a group has is the group's here: rebalance, progress, retries after delays and dead letters. What the target has
acknowledged is finished, and the group's offset goes behind it; nothing else is kept anywhere, so that a kill -9 costs repetitions and
never a message.
"""

from __future__ import annotations

import logging
from typing import Any, Final, Self

from metaq.client.consumer.consumer_async import Consumer
from metaq.client.consumer.received.message import ReceivedMessage
from metaq.client.consumer.received.outcome import Later, Pause
from metaq.clock import SYSTEM, Clock
from metaq.errors import MetaqError
from metaq.log import RateLimitedLog
from metaq.net.tls.settings import TlsSettings
from metaq.webhooks.answers import Answer, Verdict
from metaq.webhooks.content import Content, content_of
from metaq.webhooks.figures import WebhookFigures
from metaq.webhooks.gate import Gate, GateShut
from metaq.webhooks.options import Plan
from metaq.webhooks.outage import Fate, Held, Outage
from metaq.webhooks.signing import signed_fields
from metaq.webhooks.target import Target

log = logging.getLogger("metaq.webhooks")

USER_AGENT: Final = "metaq-webhook/1"
MIB: Final = 1024 * 1024
_TOPIC_BYTES: Final = 64 * MIB
"""Of one topic that is pulled and not yet posted: what waits here during a pause."""
_QUEUE_MESSAGES: Final = 200
_FOR_EVER: Final = 365 * 86_400.0
"""A message may wait in hand for the end of an outage, s: taken from us, it would spend a retry."""
_UNFINISHED: Final = 0.5
"""Seconds in which a consumer that stops is expected to have stopped: it hands out nothing more then."""


class TargetGone(MetaqError):
    """The target answered 410: it does not want to be asked any more."""


class Webhook:
    """One webhook, in one event loop. Any number of processes may run it: they share the group's queues."""

    def __init__(self, plan: Plan, namesrv: str | None = None, *, clock: Clock = SYSTEM, **common: Any) -> None:
        """
        Args:
            plan: what it does.
            namesrv, common: as for `metaq.aio.Consumer`.

        Raises ConfigError, TypeError. A cluster that is away is waited for.
        """
        self.plan, self._clock = plan, clock
        self.figures = WebhookFigures(name=plan.name, url=str(plan.url))
        self._often = RateLimitedLog(log, clock)
        self._outage = Outage(plan.pauses, clock)
        self._gate = Gate(self._outage)
        self._target = Target(plan.url, plan.target, TlsSettings(ca=plan.options.ca_file).open(), clock)
        self._gone: Answer | None = None
        self._consumer: Consumer[bytes] = Consumer(
            namesrv,
            group=plan.group,
            topics=dict(plan.topics),
            start=plan.options.start,
            orderly=plan.options.ordered,
            max_reconsume_times=plan.retries,
            queue_messages_max=max(_QUEUE_MESSAGES, plan.options.batch),
            topic_bytes_max=_TOPIC_BYTES,
            commit_interval=plan.commit_interval,
            consume_timeout=_FOR_EVER,
            clock=clock,
            **common,
        )
        self._consumer.tell(self._told)

    async def run(self) -> None:
        """Post messages until `stop`. Raises TargetGone; ClientClosed."""
        several = self.plan.options.batch > 1
        await self._consumer.run(
            self._push_several if several else self._push_one,
            tasks=self.plan.options.concurrency,
            batch=self.plan.options.batch if several else None,
        )
        if self._gone is not None:
            raise TargetGone(
                f"webhook {self.plan.name}: {self.plan.url} answered 410 Gone and is not asked any more; group {self.plan.group} "
                "keeps its place"
            )

    def stop(self) -> None:
        """Post nothing more; requests under way are waited for. In the loop, for a signal handler of it."""
        self._gate.shut()
        self._consumer.stop()

    async def close(self) -> None:
        """Stop, keep the progress, leave the group."""
        self._gate.shut()
        await self._consumer.close()
        await self._target.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _push_one(self, message: ReceivedMessage[bytes]) -> Later | Pause | None:
        return await self._push([message])

    async def _push_several(self, messages: list[ReceivedMessage[bytes]]) -> Later | Pause | None:
        return await self._push(messages)

    async def _push(self, messages: list[ReceivedMessage[bytes]]) -> Later | Pause | None:
        """Post messages until their fate is known. Returns what that is to the consumer."""
        options, held = self.plan.options, Held()
        content = content_of(messages, options.format, self.plan.group, several=options.batch > 1)
        while True:
            try:
                probe = await self._gate.enter()
            except GateShut:
                return Pause(_UNFINISHED)
            if any(message.lost for message in messages):  # Another member has them already.
                self._gate.give_up(probe=probe)
                return None
            fate = await self._attempt(content, len(messages), probe=probe, held=held)
            if fate is Fate.DONE:
                return None
            if fate is Fate.RETRY:
                return Later()
            if fate is Fate.STOP:
                self.stop()
                return Pause(_UNFINISHED)

    async def _attempt(self, content: Content, messages: int, *, probe: bool, held: Held) -> Fate:
        began = self._clock.monotonic()
        signed = signed_fields(self.plan.secrets, content.message_id, self._clock.now_ms() // 1000, content.body)
        fields = {"user-agent": USER_AGENT, "accept": "*/*", "accept-encoding": "identity", **content.fields, **signed}
        self.figures.in_flight += 1
        try:
            answer = await self._target.post(fields, content.body)
        except BaseException:
            self._gate.give_up(probe=probe)
            raise
        finally:
            self.figures.in_flight -= 1
        paused = self._outage.until is not None
        fate = self._gate.leave(answer, content.message_id, probe=probe, held=held)
        now = self._clock.monotonic()
        self.figures.count(answer, fate, messages, now - began, self._clock.now_ms())
        if answer.verdict is Verdict.GONE:
            self._gone = answer
        self._say(answer, content, fate, was_paused=paused)
        return fate

    def _say(self, answer: Answer, content: Content, fate: Fate, *, was_paused: bool) -> None:
        """Log what changes: the beginning and the end of an outage, and messages that go the way of retries."""
        name, is_paused = self.plan.name, self._outage.until is not None
        if fate is Fate.STOP:
            log.error("webhook %s: %s does not want to be asked any more (410): it stops", name, self.plan.url)
        elif is_paused and not was_paused:
            self.figures.pauses += 1
            self._often.warning(
                "pause", "webhook %s pauses for %.2g s, nothing of group %s is consumed: %s", name, self._outage.left, self.plan.group, answer.text
            )  # fmt: skip
        elif was_paused and not is_paused:
            self._often.warning("well", "webhook %s goes on: %s answers", name, self.plan.url)
        if fate is Fate.RETRY:
            text = "webhook %s: message %s is posted again later: %s"
            self._often.warning("retry", text, name, content.message_id, answer.text)

    def _told(self) -> dict[str, str]:
        figures, outage = self.figures, self._outage
        figures.failures_in_row = outage.failures
        paused = outage.until is not None
        figures.paused_until = self._clock.now_ms() + round(outage.left * 1000) if paused else 0
        figures.state = "gone" if self._gone is not None else "paused" if paused else "runs"
        return dict(figures.told())
