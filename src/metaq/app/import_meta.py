"""Composition of an import: a broker without servers, on the store that is to take the messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from metaq.app.configuration import Configuration
from metaq.app.files import broker_files
from metaq.app.partition_import import Imported, PartitionImport
from metaq.broker.broker import Broker
from metaq.broker.environment import Environment
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.clock import SYSTEM
from metaq.model.message import host_bytes
from metaq.store.config_file import ConfigFile
from metaq.store.journalled_file import JournalledFile
from metaq.store.message_store import MessageStore
from metaq.store.offline.segments import FRAME_BYTES_MAX, segments_in
from metaq.wire.metaq1.frame import LIVE


def import_meta(
    folder: Path,
    configuration: Configuration,
    *,
    progress: Callable[[Imported], None],
    stopped: Callable[[], bool] = lambda: False,
) -> list[Imported]:
    """Take over the `.meta` files under `folder`. See `PartitionImport`.

    Raises StoreForeign: there are none. StoreLocked: a broker runs on the store. Others as a broker's start.
    """
    segments = [segment for segment in segments_in(folder) if segment.path.name.endswith(LIVE) and segment.topic]
    options = configuration.broker
    store_options = configuration.store.replace(max_message_size=FRAME_BYTES_MAX)
    settings = Metaq1Settings(configuration.metaq1, configuration.rules, configuration.server_ini)
    host = host_bytes(options.broker_ip1 or options.bind_address, options.listen_port)
    store = MessageStore(store_options, SYSTEM, host, options.broker_cluster_name)
    try:
        environment = Environment(options, store_options, SYSTEM, store, options.broker_name or "broker", host)
        broker = Broker(
            environment,
            broker_files(
                lambda name: ConfigFile(store.folder.config / name, store.disk),
                lambda name: JournalledFile(store.folder.config / name, store.disk),
            ),
            text=settings,
        )
        broker.lead()
        try:
            return PartitionImport(broker, segments, progress=progress, stopped=stopped).run()
        finally:
            broker.close()
    finally:
        store.close()
