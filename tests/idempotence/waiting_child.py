"""A consumer's process that handles one message, as its caller tells it on stdin.

python waiting_child.py URL NAMESRV TOPIC NAME: says `asks`, handles the first message of the topic, and says `handled` or `skipped`. In the
middle of the handler it says `inside`, and reads a line: `commit`, or `raise`.
"""

import sys

import metaq
from metaq.idempotence import Idempotence
from tests.outbox.databases import connect, run


def main(url, namesrv, topic, name):
    seen, said = Idempotence("billing"), []

    @seen.handler(lambda: connect(url))
    def bill(message, connection):
        run(connection, "INSERT INTO bills (name) VALUES (?)", f"{message.body.decode()} by {name}")
        print("inside", flush=True)
        if sys.stdin.readline().strip() == "raise":
            raise ValueError("as told")
        said.append("handled")

    with metaq.Reader(namesrv, topic, start="earliest", stop_at_end=True) as reader:
        message = next(iter(reader))
    print("asks", flush=True)
    try:
        bill(message)
    except ValueError:
        said.append("failed")
    print(*said or ["skipped"], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
