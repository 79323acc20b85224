"""What the sessions of one server share: the table of a read event's requests, and the buffers of their answers."""

from __future__ import annotations

from collections.abc import Collection

from metaq.broker.broker import Broker
from metaq.net.sweep import Sweep
from metaq.servers.held_acks import HeldAcks
from metaq.servers.pieces import ColdReads
from metaq.servers.remoting.acl.signed import Signers
from metaq.wire import hot

ROWS_MAX = 4096
"""Most requests of one read event that are scanned at once."""


class Workspace:
    """Shared by the sessions of one server, which use it one read event at a time.

    Args:
        broker: the services.
        held_acks: holds answers to sends until they are durable.
        cold_reads: reads old messages in threads.
        signers: with access control: whose signed requests the fast paths take; None: signed ones take the slow path.
    """

    def __init__(self, broker: Broker, held_acks: HeldAcks, cold_reads: ColdReads, signers: Signers | None) -> None:
        self.broker, self.appender, self.signers = broker, broker.appender, signers
        self.held_acks, self.cold_reads = held_acks, cold_reads
        self.table = hot.FrameTable(broker.options.frame_bytes_max, ROWS_MAX, signers is not None)
        self.outcome = hot.AppendOutcome()
        # The region and the trace switch are part of each send's answer, so they are compiled into the buffers: see
        # `_options_changed`.
        self.answers, self.acks = self._replies(), self._replies()
        """`acks`: success answers to sends and ends of transactions, apart because they may have to wait for the disk."""
        self.woken = self._replies()
        """Answer to one held pull, of whichever connection."""
        self.current: object | None = None
        """The session whose read event is being handled: its answers are gathered, those of others go out at once."""
        self.sweep: Sweep | None = None
        """Reads connections that send one by one; None without sweeps."""
        broker.settings.watch(self._options_changed)

    def _replies(self) -> hot.Replies:
        options = self.broker.options
        return hot.Replies(options.region_id.encode(), options.trace_on)

    def _options_changed(self, names: Collection[str]) -> None:
        if "trace_on" in names:
            # Perhaps in the middle of a read event, which has gathered answers already: keep them.
            gathered = self.answers.take(), self.acks.take()
            self.answers, self.acks = self._replies(), self._replies()
            self.answers.extend(gathered[0])
            self.acks.extend(gathered[1])
