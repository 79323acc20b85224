"""Metrics of programs that nobody can scrape, because they end: to a Pushgateway, or to a file for node_exporter."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client import push_to_gateway, write_to_textfile

from metaq.errors import ConfigError
from metaq.log import RateLimitedLog
from metaq.metrics.exposition import families
from metaq.metrics.metric import Sample

log = logging.getLogger(__name__)

SECONDS: Final = 10.0
"""Longest wait for a Pushgateway."""
SUFFIX: Final = ".prom"
"""Of the files that node_exporter's collector `textfile` reads."""


def check_target(target: str) -> str:
    """Return the target. Raises ConfigError: it is neither the URL of a Pushgateway nor the path of a `.prom` file."""
    parts = urlsplit(target)
    if parts.scheme in ("http", "https"):
        if not parts.hostname:
            raise ConfigError(f"metricsUrl={target!r} has no host")
        return target
    if parts.scheme in ("", "file") and target.endswith(SUFFIX):
        return target
    raise ConfigError(
        f"metricsUrl={target!r} is neither the URL of a Pushgateway (http://host:9091) nor the path of a {SUFFIX} file for "
        "node_exporter"
    )


class Pusher:
    """Pushes samples from a thread of its own, the newest ones: whoever calls `note` waits for nobody.

    Args:
        target: URL of a Pushgateway, or path of a file (`/var/lib/node_exporter/NAME.prom`, also as a `file:` URL).
        job: name of the job at a Pushgateway; its samples are replaced with each push.
        samples: returns the values of the moment.
    Raises: ConfigError: as `check_target`.
    """

    def __init__(self, target: str, job: str, samples: Callable[[], Iterable[Sample]]) -> None:
        self._target, self._job, self._samples = check_target(target), job, samples
        self._faults = RateLimitedLog(log, seconds=60.0)
        self._due = self._closed = False
        self._changed = threading.Condition()
        # A daemon: a gateway that is away must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="metaq-push", daemon=True)
        self._thread.start()

    def note(self) -> None:
        """Have the values pushed soon. Returns at once."""
        with self._changed:
            self._due = True
            self._changed.notify_all()

    def close(self, seconds: float = SECONDS) -> None:
        """Push what is due, and end; wait so long for that at most."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._due or self._closed)
                if not self._due:
                    return
                self._due = False
            try:
                self._push()
            except Exception as fault:  # noqa: BLE001  a gateway that is away, or a full disk, must not end the work that is measured
                self._faults.warning("push", "metrics were not pushed to %s: %s", _shown(self._target), fault)

    def _push(self) -> None:
        registry: Any = _Registry(self._samples)
        if urlsplit(self._target).scheme in ("http", "https"):
            push_to_gateway(self._target, self._job, registry, timeout=SECONDS)
        else:
            write_to_textfile(str(Path(urlsplit(self._target).path)), registry)


class _Registry:
    """What prometheus_client's writers ask of a registry."""

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._samples = samples

    def collect(self) -> Iterable[Any]:
        return families(self._samples())


def _shown(target: str) -> str:
    """Return a target without the account that it may hold."""
    parts = urlsplit(target)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
