"""A consumer that dies by kill -9 at a step of the caller's choice, while it handles one message.

python killed_child.py URL NAMESRV GROUP STEP MESSAGE: consumes until the message with the body MESSAGE is acknowledged. Statements,
commit and acknowledgement of that one are steps: the process dies at number STEP, and says where. It prints `ended` if it got through.
"""

import sys

import metaq
from metaq.idempotence import Idempotence
from tests.outbox.databases import place
from tests.outbox.steps import Connection, Steps


def main(url, namesrv, group, step, wanted):
    steps, seen = Steps(int(step)), Idempotence(group)

    @seen.handler(lambda: Connection(url, steps))
    def bill(message, connection):
        mark = place(connection.dbapi_connection)
        connection.cursor().execute(f"INSERT INTO bills (name) VALUES ({mark})", (message.body.decode(),))

    with metaq.Consumer(namesrv, group=group, topics=group, start="earliest") as consumer:
        for message in consumer:
            if message.body.decode() != wanted:
                with message:
                    bill(message)
                continue
            with steps.counted():
                with message:
                    bill(message)
                    steps.at("before ack")
                steps.at("behind ack")
            break
    print("ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
