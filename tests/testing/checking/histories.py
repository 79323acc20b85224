"""Histories of a broker that keeps its promises, made from choices, for tests that then break one of them."""

from __future__ import annotations

from collections import defaultdict

from metaq.testing.checking import (
    Committed,
    GroupAt,
    Held,
    LeaderSeen,
    Observed,
    Place,
    QueueHolds,
    SendBegun,
    SendEnded,
)

QUEUES = ("t@b:0", "t@b:1")
GROUP = "g"


class Model:
    """A broker, its clients, and what they write down; one event each millisecond."""

    def __init__(self):
        self.events = []
        self.queues = defaultdict(list)
        self.groups = {GROUP}
        self._now, self._op = 0.0, 0

    def at(self):
        self._now += 0.001
        return self._now

    def send(self, key, queue=0, *, outcome="acked", stored=None, status="SEND_OK"):
        """One message. `stored`: whether it is, of an ambiguous one."""
        self._op += 1
        self.events.append(SendBegun(self.at(), "p", self._op, (key,), QUEUES[queue]))
        places = ()
        if outcome == "acked" or stored:
            places = (self._store(key, queue),)
        ended = SendEnded(self.at(), "p", self._op, outcome, places if outcome == "acked" else (), status)
        self.events.append(ended)
        return places

    def batch(self, keys, queue=0):
        self._op += 1
        self.events.append(SendBegun(self.at(), "p", self._op, tuple(keys), QUEUES[queue]))
        places = tuple(self._store(key, queue) for key in keys)
        self.events.append(SendEnded(self.at(), "p", self._op, "acked", places, "SEND_OK"))

    def atomic(self, keys, *, outcome="acked", stored=True):
        self._op += 1
        self.events.append(SendBegun(self.at(), "p", self._op, tuple(keys), "", atomic=True))
        if stored:
            for number, key in enumerate(keys):
                self._store(key, number % 2)
        self.events.append(SendEnded(self.at(), "p", self._op, outcome))

    def unanswered(self, key, queue=0, *, stored):
        self._op += 1
        self.events.append(SendBegun(self.at(), "p", self._op, (key,), QUEUES[queue]))
        if stored:
            self._store(key, queue)

    def _store(self, key, queue):
        self.queues[queue].append(key)
        return Place(QUEUES[queue], len(self.queues[queue]) - 1)

    def read(self, process="r", group="", *, orderly=False):
        """Somebody gets everything that is there."""
        for queue, keys in self.queues.items():
            for offset, key in enumerate(keys):
                place = Place(QUEUES[queue], offset)
                self.events.append(Observed(self.at(), process, place, key, group, orderly))
            if group:
                self.groups.add(group)
                self.events.append(Committed(self.at(), process, group, Place(QUEUES[queue], len(keys))))

    def finish(self, *, replicas=("b/0", "b/1")):
        """The looks at the end. Returns the history."""
        self.read("c", GROUP)
        self.events.append(LeaderSeen(self.at(), "b", 1, "broker-0", "broker-0"))
        for queue in range(len(QUEUES)):
            keys = self.queues[queue]
            self.events.append(QueueHolds(self.at(), QUEUES[queue], 0, len(keys)))
            for group in sorted(self.groups):
                self.events.append(GroupAt(self.at(), group, Place(QUEUES[queue], len(keys))))
            for offset, key in enumerate(keys):
                for source in ("", *replicas):
                    self.events.append(Held(self.at(), Place(QUEUES[queue], offset), key, source))
        return self.events


def usual():
    """A history with something of everything."""
    model = Model()
    model.send("a0")
    model.send("a1", 1)
    model.send("r0", outcome="refused")
    model.batch(["b0", "b1"])
    model.atomic(["x0", "x1", "x2"])
    model.atomic(["y0", "y1"], outcome="refused", stored=False)
    model.read("r1")
    model.send("m0", outcome="ambiguous", stored=True)
    model.unanswered("m1", stored=False)
    model.send("a2")
    return model.finish()
