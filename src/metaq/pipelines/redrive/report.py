"""Report of a redrive, as text and as figures. Loads no Spark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from metaq.amounts import count
from metaq.pipelines.run import Outcome

CHOSEN, LEFT = "chosen", "left"
WHY: Final = {
    "corrupt": "do not decode",
    "homeless": "name no topic that they could go back to (give to)",
    "empty": "would have no body",
    "illegal": "have a tag, a key or a property that no message may have",
    "large": "are larger than the brokers take them (maxMessageSize; 31 KiB of properties)",
}
"""Fate → why such a message cannot be sent."""


class SampleMessage(NamedTuple):
    """A message as it would be sent."""

    place: str
    topic: str
    tag: str
    keys: str
    body: str

    def __str__(self) -> str:
        more = "".join(f" {name}={value}" for name, value in (("tag", self.tag), ("keys", self.keys)) if value)
        return f"{self.place} -> {self.topic}{more} {self.body}"


@dataclass(kw_only=False)
class Report:
    """Figures of one run."""

    source: str
    dry_run: bool = False
    chosen: int = 0
    """Messages that can be sent, including those that this run has sent."""
    sent: int = 0
    targets: dict[str, int] = field(default_factory=dict)
    """Topic to send to → chosen messages."""
    not_chosen: int = 0
    sent_before: int = 0
    """Messages sent by earlier runs, from the ledger."""
    there: int = 0
    """Messages with a copy at the target."""
    unfit: dict[str, int] = field(default_factory=dict)
    """Fate → messages that cannot be sent."""
    unfit_places: list[tuple[str, str]] = field(default_factory=list)
    """Fate and place of the first messages that cannot be sent."""
    cap: int | None = None
    only_group: str | None = None
    """Group that alone gets the messages; None: all do."""
    stopped: bool = False
    samples: list[SampleMessage] = field(default_factory=list)

    def count(self, found: Iterable[tuple[str, str | None, int]]) -> None:
        """Add counts: (fate, target, messages)."""
        self.chosen = self.not_chosen = 0
        self.targets, self.unfit = {}, {}
        for fate, target, messages in sorted(found, key=lambda one: (one[0], one[1] or "")):
            if fate == CHOSEN:
                self.chosen += messages
                self.targets[target or ""] = self.targets.get(target or "", 0) + messages
            elif fate == LEFT:
                self.not_chosen += messages
            else:
                self.unfit[fate] = self.unfit.get(fate, 0) + messages

    @property
    def room(self) -> int:
        """Number of messages that this run may still send."""
        left = self.chosen - self.sent
        return left if self.cap is None else min(left, self.cap - self.sent)

    def outcome(self) -> Outcome:
        figures = {
            "dry_run": self.dry_run, "sent": self.sent, "left": self.chosen - self.sent, "chosen": self.chosen,
            "targets": dict(self.targets), "not_chosen": self.not_chosen, "sent_before": self.sent_before,
            "there": self.there, "unfit": dict(self.unfit), "stopped": self.stopped,
        }  # fmt: skip
        if self.samples:
            figures["samples"] = [one._asdict() for one in self.samples]
        return Outcome(figures, "\n".join(self.lines()))

    def lines(self) -> list[str]:
        """Return the report in lines, for the terminal."""
        if self.dry_run:
            found = [
                f"dry run, nothing was sent: {count(self.chosen, 'message')} of {self.source} would be sent{self._capped()}"
            ]
        else:
            left = self.chosen - self.sent
            capped = self.cap is not None and self.sent >= self.cap
            why = "it was stopped" if self.stopped else "the cap" if capped else "they could not be found again"
            rest = f"; {left:,} are left ({why}), the next run goes on with them" if left else ""
            found = [f"{count(self.sent, 'message')} of {self.source} sent{rest}"]
        alone = f", for the group {self.only_group} alone" if self.only_group else ""
        found += [f"  to {target}{alone}: {messages:,}" for target, messages in self.targets.items()]
        if self.not_chosen:
            found.append(f"  not chosen by where: {self.not_chosen:,}")
        if self.sent_before:
            found.append(f"  sent before: {self.sent_before:,}")
        if self.there:
            found.append(f"  at their targets already: {self.there:,}")
        found += unfit_lines(self)
        return found + [f"  {one}" for one in self.samples]

    def _capped(self) -> str:
        return (
            f", {self.cap:,} of them in the first run (cap)" if self.cap is not None and self.cap < self.chosen else ""
        )


def unfit_lines(report: Report) -> list[str]:
    """Return lines on messages that cannot be sent, with the places of the first."""
    found = []
    for fate, messages in sorted(report.unfit.items()):
        places = [place for one, place in report.unfit_places if one == fate]
        where = f" (at broker/queue/offset {', '.join(places)})" if places else ""
        found.append(f"  left where they are, because they {WHY.get(fate, fate)}: {messages:,}{where}")
    return found


def refusal(report: Report) -> str:
    """Return why a run with onCorrupt=fail ends before it sends."""
    why = "; ".join(line.strip() for line in unfit_lines(report))
    return f"nothing was sent (onCorrupt=fail): {why}"
