"""The role of this broker among the replicas of its log: kept in `config/metaqLeadership.json`, changed by hand.

A master that steps down takes no messages from that moment on, and is a slave when it starts again. A slave that is promoted
begins an epoch where its log ends. Both are on the disk before anybody is told (`metaq.app.role.running` carries them out).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec import structs

from metaq.address import split_address
from metaq.broker.environment import Environment
from metaq.broker.gatekeeper import Gatekeeper
from metaq.broker.replication.replicas import Replicas
from metaq.errors import Reason, Refused
from metaq.model.access import Caller
from metaq.model.failover import NOBODY
from metaq.model.leadership import MASTERS, SLAVE, CutTail, Epoch, Leadership, ReplicaState, SlaveState
from metaq.saved import Pending, PendingOutcome
from metaq.saved_file import TextFile

EPOCHS_MAX: Final = 1000
"""Epochs that are kept, the newest: two logs that have parted longer ago have nothing in common."""
CUTS_MAX: Final = 20

RoleChange: TypeAlias = PendingOutcome[ReplicaState]
"""A change of roles that was asked for. Done when the broker has its new role."""


class Roles:
    """The role of one broker. Only on the thread that owns the broker.

    Args:
        file: read at once. Raises ConfigError: it cannot be read.
        call_soon: brings a call of the thread that saves to the owner's thread.
    """

    def __init__(
        self,
        environment: Environment,
        file: TextFile[Leadership],
        replicas: Replicas,
        gatekeeper: Gatekeeper,
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self._environment, self._file, self._replicas, self._gatekeeper = environment, file, replicas, gatekeeper
        self._call_soon = call_soon
        self.kept = file.read() or Leadership()
        """As it is on the disk."""
        recovered = environment.store.recovered
        self.torn = range(recovered.torn_from, recovered.log_end)
        """LogOffsets where a power cut may have torn what no checksum covers, until they were compared with another replica's."""
        self.leads = True
        """Whether this broker takes messages."""
        self.has_led = False
        """Whether it has stepped down, and does not follow yet: its tables are the newest that there are."""
        self.stepped_down = False
        """Whether it has led in this process, and does no more: it can lead again when it was made anew."""
        self.always_relays = False
        """Whether it relays whenever it follows: its group changes leaders by itself, and clients learn of that later."""
        self.leader_address = ""
        """Address of the remoting server of the broker that leads now or is about to, as far as is known; "": it is not."""
        self.predecessor = ""
        """Of a leader that was promoted: address of the leader before, which may relay to this one before it copies from here."""
        self.asked_to_lead_at = environment.clock.monotonic()
        """When a client has last asked this broker for what only a leader does, while another one leads; monotonic seconds."""
        self.master, self.master_end, self.master_heard_ms = "", -1, 0
        """Of a slave: its master's address, where that log ended when it was last heard, and when that was."""
        self.when_begun: list[Callable[[], None]] = []
        """Called, in this order, by `begun`."""
        self._promote: Callable[[RoleChange, str, bool], None] | None = None
        self._step_down: Callable[[RoleChange, int, str], None] | None = None

    def by(
        self, promote: Callable[[RoleChange, str, bool], None], step_down: Callable[[RoleChange, int, str], None]
    ) -> None:
        """Register who changes the role: (change, role, force), and (change, broker id, address of the next master)."""
        self._promote, self._step_down = promote, step_down

    def begun(self) -> None:
        """Tell that this broker leads now, and takes what its clients send."""
        for call in self.when_begun:
            call()

    # ------------------------------------------------------------------ what is relayed

    def relays(self) -> bool:
        """Whether what clients ask of a leader is relayed to the one that leads: by a broker that was the leader a moment ago."""
        return self.stepped_down or self.always_relays

    def speaks_for_clients(self, caller: Caller) -> bool:
        """Whether a caller is believed whose requests it relays: it is on the machine of a replica, which has all messages already."""
        return self._is_of_a_slave(caller) or (
            bool(self.predecessor) and split_address(self.predecessor)[0] == caller.address
        )

    # ------------------------------------------------------------------ what is asked

    def state(self) -> ReplicaState:
        """Return this broker as one of the replicas."""
        environment, log = self._environment, self._environment.store.log
        now = environment.clock.monotonic()
        return ReplicaState(
            environment.name,
            environment.options.broker_id,
            environment.options.broker_role,
            self.leads,
            log.min,
            log.end,
            self._replicas.port,
            self.kept.epochs,
            self.master or self.kept.master,
            self.master_end,
            self.master_heard_ms,
            tuple(
                SlaveState(address, copied, self._replicas.behind_ms(copied, now))
                for address, copied in self._replicas.reported().items()
            ),
            self.kept.cuts,
            self.torn.start,
            self.torn.stop,
            self._replicas.group_role,
            -1 if self.leads else int(1000 * (now - self.asked_to_lead_at)),
        )

    def ask_to_lead(self, caller: Caller, role: str, *, force: bool) -> RoleChange:
        """Promote this slave. `role`: its brokerRole then; "": its master's.

        Raises Refused: the caller may not, it is the master already, or the role is none of a master.
        """
        self._gatekeeper.check_administration(caller, "the role of the broker")
        if self.leads:
            raise Refused(
                Reason.INVALID, f"{self._environment.name} is the master already: there is nothing to promote"
            )
        if role and role not in MASTERS:
            raise Refused(Reason.INVALID, f"brokerRole={role!r:.40}: a master has {' or '.join(MASTERS)}")
        if self._promote is None:
            # As one that is about to start again: whoever promotes it tries again.
            raise Refused(Reason.BUSY, "this broker is not started yet, or is stopping: promote it again in a moment")
        change: RoleChange = PendingOutcome()
        self._promote(change, role, force)
        return change

    def ask_to_follow(self, caller: Caller, broker_id: int, master: str) -> RoleChange:
        """Have this master step down: for those who may administer it, and for its slaves.

        Args:
            broker_id: its number then; in a group with failover the member that leads next, NOBODY: the one that is nearest.
            master: address of the broker that leads next; "": it is looked for.
        Raises Refused: the caller may not, it is a slave already, or the number is none of a slave.
        """
        if not (self._gatekeeper.unguarded and self._is_of_a_slave(caller)):
            self._gatekeeper.check_administration(caller, "the role of the broker")
        if broker_id < 0 or (broker_id == NOBODY and self._replicas.group_role is None):
            raise Refused(Reason.INVALID, f"brokerId={broker_id}: a slave has a number from 1 on")
        if not self.leads:
            raise Refused(
                Reason.INVALID,
                f"{self._environment.name} is a slave already (brokerId {self._environment.options.broker_id})",
            )
        if self._step_down is None:
            raise Refused(Reason.UNAVAILABLE, "this broker is not started yet, or is stopping")
        change: RoleChange = PendingOutcome()
        self._step_down(change, broker_id, master)
        return change

    def _is_of_a_slave(self, caller: Caller) -> bool:
        """Whether it comes from the machine of a slave, which has all of this broker's messages already."""
        return any(split_address(address)[0] == caller.address for address in self._replicas.reported())

    # ------------------------------------------------------------------ what is kept

    def began(self, broker_id: int) -> Epoch:
        """Return the epoch that begins here and now. `broker_id`: the leader's number as a slave, 0 if it was none."""
        clock = self._environment.clock
        (term, number, *_), start = self.kept.rank, self._environment.store.log.end
        return Epoch(number + 1, start, clock.token(), clock.now_ms(), broker_id, term + (broker_id > 0))

    def in_epoch(self, epoch: Epoch) -> Leadership:
        """Return what is kept, with one epoch more."""
        # A slave knows of epochs that begin behind what it has copied, and a power cut may have taken one: of those nothing is here.
        known = [one for one in self.kept.epochs if one.start <= epoch.start]
        return structs.replace(self.kept, epochs=(*known, epoch)[-EPOCHS_MAX:])

    def leading(self, role: str, epoch: Epoch) -> Leadership:
        """Return what is kept by a slave that is promoted."""
        return structs.replace(self.in_epoch(epoch), role=role, broker_id=0, master="")

    def following(self, broker_id: int, master: str) -> Leadership:
        """Return what is kept by a master that steps down."""
        role = self._environment.options.broker_role
        return structs.replace(
            self.kept,
            role=SLAVE,
            broker_id=broker_id,
            master=master,
            master_role=role if role in MASTERS else self.kept.master_role,
        )

    def with_cut(self, cut: CutTail) -> Leadership:
        """Return what is kept by a slave that is about to cut its log. A cut that a crash has interrupted is told once."""
        place = cut.log_offset, cut.log_end
        others = [one for one in self.kept.cuts if (one.log_offset, one.log_end) != place]
        return structs.replace(self.kept, cuts=(*others, cut)[-CUTS_MAX:])

    def with_epochs(self, epochs: tuple[Epoch, ...]) -> Leadership:
        """Return what is kept by a broker whose role is decided elsewhere."""
        role = self._environment.options.broker_role
        master_role = role if role in MASTERS else self.kept.master_role
        return structs.replace(self.kept, role="", broker_id=0, master="", epochs=epochs, master_role=master_role)

    def with_history(self, epochs: tuple[Epoch, ...], master_role: str) -> Leadership:
        """Return what is kept by a slave whose log is the begin of another's. `master_role`: of the broker whose log that is."""
        return structs.replace(self.kept, epochs=epochs, master_role=master_role)

    def keep(self, leadership: Leadership) -> Pending:
        """Save durably, and then go by it. Refused NOT_STORED: it could not be saved, and what was kept before is valid."""
        pending = Pending()

        def saved(error: OSError | None) -> None:
            if error is None:
                self.kept = leadership
                pending.finish()
            else:
                text = f"{self._file.file.where} could not be saved: {error.strerror or error}"
                pending.finish(Refused(Reason.NOT_STORED, text))

        self._file.file.save_soon(
            lambda: self._file.format.text(leadership), lambda error: self._call_soon(lambda: saved(error))
        )
        return pending
