"""Delivers alerts to a topic and to a command. A failed delivery never ends the pipeline: it is logged."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Final

import msgspec

from metaq.client.conversation.sending.sending import Outgoing, Send
from metaq.clock import Clock
from metaq.errors import BrokerError, MetaqError
from metaq.model import properties as props
from metaq.model.message_ids import IdPrefixes
from metaq.net.address import local_address
from metaq.pipelines.metrics.alerts import Alert
from metaq.pipelines.metrics.tables import moment
from metaq.spark.cluster.courier import Courier

_LOG = logging.getLogger(__name__)
GROUP: Final = "metaq-metrics"
"""Producer group of alerts."""
SAID_BYTES_MAX: Final = 500
"""Most characters of a failing command's standard error that are logged: the last ones."""


def alert_json(alert: Alert) -> bytes:
    """Return an alert as JSON: its fields, with times as ISO 8601 in UTC too."""
    times = {"since": _iso(alert.since_ms), "window": _iso(alert.window_ms)}
    return msgspec.json.encode({**msgspec.structs.asdict(alert), **times})


class TopicMail:
    """Sends alerts to a topic: key: the alert's id; tag: `begin` or `end`; body: `alert_json`. Not thread-safe.

    The first alert creates a missing topic, if brokers have autoCreateTopicEnable.
    """

    def __init__(self, courier: Courier, topic: str, clock: Clock, seconds: float) -> None:
        """Args: seconds: how long to look for the topic."""
        self._courier, self._topic, self._clock, self._seconds = courier, topic, clock, seconds
        self._id_prefix = IdPrefixes(local_address(), clock).next
        self._turn = 0
        self._failed = False

    def deliver(self, alert: Alert) -> bool:
        """Send an alert. Returns whether it is stored; of several failures in a row only the first is logged."""
        try:
            queues = self._courier.writable(self._topic, self._seconds)
            self._turn += 1
            queue = queues[self._turn % len(queues)]
            pairs = {
                props.KEYS: alert.id,
                props.TAGS: alert.state,
                props.UNIQUE_ID: self._id_prefix().decode() + "0000",
                props.WAIT: "true",
            }
            outgoing = Outgoing(self._topic, alert_json(alert), properties=props.join(pairs))
            self._send(Send(GROUP, outgoing, queue, self._clock.now_ms()))
        except MetaqError as fault:
            if not self._failed:
                _LOG.warning("metrics: the alert %s waits for topic %s: %s", alert.id, self._topic, fault)
            self._failed = True
            return False
        self._failed = False
        return True

    def _send(self, call: Send) -> None:
        try:
            self._courier.link_to(call.queue.broker).ask([call])
        except BrokerError:
            raise
        except MetaqError:
            self._courier.forget(call.queue.broker)
            raise

    def close(self) -> None:
        self._courier.close()


class CommandMail:
    """Runs a command for each alert, without a shell, with `alert_json` as its standard input. Not thread-safe."""

    def __init__(self, words: Sequence[str], seconds: float) -> None:
        """
        Args:
            words: program and arguments.
            seconds: time limit; then the command and its child processes are killed.
        """
        self._words, self._seconds = list(words), seconds

    def deliver(self, alert: Alert) -> bool:
        """Run the command. Returns True always: an alert is tried once, and a failure is logged."""
        with tempfile.TemporaryFile() as said:
            try:
                running = subprocess.Popen(  # noqa: S603  the operator's own command, as words
                    self._words,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    start_new_session=True,
                )
            except OSError as fault:
                _LOG.warning(
                    "metrics: alertCommand cannot be run for alert %s: %s: %s", alert.id, self._words[0], fault.strerror
                )
                return True
            try:
                running.communicate(alert_json(alert), timeout=self._seconds)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
                running.communicate()
                _LOG.warning(
                    "metrics: alertCommand did not end within %g s for alert %s, and was ended", self._seconds, alert.id
                )
                return True
            if running.returncode:
                said.seek(max(0, said.seek(0, os.SEEK_END) - SAID_BYTES_MAX))
                _LOG.warning(
                    "metrics: alertCommand failed with status %d for alert %s: %s",
                    running.returncode, alert.id, said.read().decode("utf-8", "replace").strip(),
                )  # fmt: skip
        return True


def _iso(ms: int) -> str:
    return moment(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
