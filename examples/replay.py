"""Read a topic again without a group: from the beginning, and from a moment on. Leaves no trace at the broker.

metaq up &
python examples/replay.py
"""

import datetime as dt
import os

import metaq

NAMESRV = os.environ.get("NAMESRV_ADDR", "localhost:9876")


def main() -> None:
    with metaq.Producer(NAMESRV) as producer:
        for number in range(5):
            producer.send("readings", f"early {number}".encode(), ordering_key="sensor-1")
        middle = dt.datetime.now(dt.UTC)
        for number in range(5):
            producer.send("readings", f"late {number}".encode(), ordering_key="sensor-1")

    with metaq.Reader(NAMESRV, "readings", start="earliest", stop_at_end=True) as reader:
        bodies = [message.body for message in reader]
    print(len(bodies), "readings, the first is", bodies[0])

    with metaq.Reader(NAMESRV, "readings", start=middle, stop_at_end=True) as reader:
        late = [message.body for message in reader]
    print(len(late), "readings since then, the first is", late[0])


if __name__ == "__main__":
    main()
