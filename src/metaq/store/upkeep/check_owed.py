"""What a folder still owes, and which of it a RocketMQ that opens the folder would not act on (docs/formats/extensions.md)."""

from __future__ import annotations

from typing import Final

from metaq.errors import BadRequest, ConfigError
from metaq.model import DelayProgress
from metaq.model.topics.system import SCHEDULE_TOPIC
from metaq.saved_file import TextFile
from metaq.store.config_file import ConfigFile
from metaq.store.folder import StoreFolder
from metaq.store.offline.reader import StoreReader
from metaq.store.offline.staged import DECISIONS_TOPIC, STAGE_TOPIC, StagedSurvey
from metaq.store.upkeep.check_queues import CARRIED
from metaq.store.upkeep.findings import Findings
from metaq.store.upkeep.log_records import Seen
from metaq.wire.files import DELAY_OFFSETS

_STAGED: Final = frozenset({STAGE_TOPIC.encode(), DECISIONS_TOPIC.encode()})
_IS_OVER: Final = frozenset({"committed", "rolled back", "forgotten"})


class OwedCheck:
    """Told of each record of the log; then `finish`."""

    def __init__(self, folder: StoreFolder, findings: Findings) -> None:
        self._folder, self._findings = folder, findings
        self._staged = 0

    def take(self, seen: Seen) -> None:
        """Take note whether there are staged transactions at all."""
        if seen.head.topic in _STAGED:
            self._staged += 1

    def finish(self, ends: dict[str, dict[int, int]]) -> None:
        """`ends`: topic → queue id → max offset."""
        self._check_delays(ends.get(SCHEDULE_TOPIC, {}))
        self._check_staged()
        if places := self._findings.kind("commit log", "records").damaged:
            self._findings.owed.append(
                f"the log has {places} damaged {'place' if places == 1 else 'places'}: a RocketMQ may end the log at one of them, and "
                "is blind to what lies behind"
            )

    def _check_delays(self, ends: dict[int, int]) -> None:
        kind = self._findings.kind("delays", "levels")
        path = self._folder.config / DELAY_OFFSETS.name
        try:
            progress = TextFile(ConfigFile(path), DELAY_OFFSETS).read() or DelayProgress({}, None)
        except (ConfigError, BadRequest):
            return  # told as a damaged table
        carried = 0
        for queue_id, end in sorted(ends.items()):
            kind.checked += 1
            done = progress.offsets.get(queue_id + 1, 0)
            if done > end and self._findings.in_order:
                why = f"level {queue_id + 1} is delivered up to {done}, and its queue ends at {end}"
                kind.add(path, 0, 0, why)
            if queue_id >= CARRIED:
                carried += max(0, end - done)
        if carried:
            self._findings.owed.append(
                f"{carried} delayed {'message was' if carried == 1 else 'messages were'} written anew, to queues {CARRIED} and above of {SCHEDULE_TOPIC}: a RocketMQ delivers "
                "none of them"
            )

    def _check_staged(self) -> None:
        if not self._staged:
            return
        kind = self._findings.kind("staged transactions", "transactions")
        survey = StagedSurvey(StoreReader(self._folder.commit_log))
        kind.checked = len(survey.transactions)
        for problem in survey.problems:
            kind.add(self._folder.commit_log, 0, 0, problem)
        open_ones: dict[str, int] = {}
        for one in survey.transactions.values():
            if not self._findings.running:  # a broker that runs is in the middle of some
                for problem in one.problems:
                    kind.add(self._folder.commit_log, 0, 0, f"{one.transaction}: {problem}")
            if one.phase not in _IS_OVER:
                open_ones[one.phase] = open_ones.get(one.phase, 0) + 1
        for phase, count in sorted(open_ones.items()):
            self._findings.owed.append(
                f"staged transactions, {phase}: {count}. A RocketMQ keeps their records until their log files go, and delivers nothing of them"
            )
