"""Queues and clients in detail (303, 308, 317, 321, 328)."""

from __future__ import annotations

from metaq.broker.broker import Broker
from metaq.in_pieces import InPieces
from metaq.model.access import Action
from metaq.net.address import join_address
from metaq.servers.remoting.handlers import Answer, Call, NoHeader, handles
from metaq.wire import bodies, headers
from metaq.wire.codes import RequestCode


class InspectionHandlers:
    """Handlers of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._inspection = broker.inspection

    @handles(RequestCode.QUERY_CONSUME_TIME_SPAN, headers.TimeSpanHeader, Action.OBSERVE)
    def _time_spans(self, call: Call[headers.TimeSpanHeader]) -> Answer:
        return bodies.time_spans(self._inspection.time_spans(call.header.topic, call.header.group))

    @handles(RequestCode.QUERY_CORRECTION_OFFSET, headers.CorrectionHeader, Action.OBSERVE)
    def _corrections(self, call: Call[headers.CorrectionHeader]) -> InPieces[Answer]:
        header = call.header
        left_out = frozenset((header.left_out or "").split(","))
        found = yield from self._inspection.correction_offsets(header.topic, header.group, left_out)
        return bodies.correction_offsets(found)

    @handles(RequestCode.GET_BROKER_CONSUME_STATS, headers.AllStatsHeader, Action.OBSERVE)
    def _all_stats(self, call: Call[headers.AllStatsHeader]) -> Answer:
        groups = self._inspection.all_progress(ordered=call.header.ordered)
        queues = ((group, ((topic.queues, topic.gets_per_second) for topic in topics)) for group, topics in groups)
        return bodies.all_consume_stats(join_address(*self._inspection.address), queues)

    @handles(RequestCode.QUERY_CONSUME_QUEUE, headers.ConsumeQueueHeader, Action.OBSERVE)
    def _units(self, call: Call[headers.ConsumeQueueHeader]) -> Answer:
        header = call.header
        found = self._inspection.units(header.topic, header.queue_id, header.index, header.count, header.consumer_group)
        return bodies.queue_units(found, header.topic)

    @handles(RequestCode.GET_ALL_PRODUCER_INFO, NoHeader, Action.OBSERVE)
    def _all_producers(self, _call: Call[NoHeader]) -> Answer:
        return bodies.all_producers(self._inspection.all_producers())
