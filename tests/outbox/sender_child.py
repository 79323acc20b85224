"""A sender as a process of its own.

python sender_child.py URL NAMESRV: says `ready`, reads a line, and sends in batches of five until nothing is left. It prints how many it has sent.
"""

import contextlib
import sys

import metaq
from metaq.outbox import Outbox, OutboxSender, Rules
from tests.outbox.databases import connect


def main(url, namesrv):
    outbox = Outbox()

    def is_empty():
        with contextlib.closing(connect(url)) as connection:
            return not outbox.listed(connection)

    with metaq.Producer(namesrv) as producer:
        print("ready", flush=True)
        sys.stdin.readline()
        sender = OutboxSender(outbox, lambda: connect(url), producer, Rules(batch=5))
        while not is_empty():
            sender.run_once()
        print(sender.sent, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
