"""Messages of one ordering key keep their order: they go to one queue, and a queue has one order.

metaq up &
python examples/ordered_by_key.py
"""

import os
from collections import defaultdict

import metaq

NAMESRV = os.environ.get("NAMESRV_ADDR", "localhost:9876")
CUSTOMERS = ("anna", "bela", "carl")
STEPS = ("created", "paid", "packed", "sent")


def main() -> None:
    with metaq.Producer(NAMESRV) as producer:
        for step in STEPS:
            for customer in CUSTOMERS:
                producer.submit("customer-steps", step.encode(), keys=[customer], ordering_key=customer)
    # Leaving the block has sent everything.

    steps: dict[str, list[str]] = defaultdict(list)
    with metaq.Reader(NAMESRV, "customer-steps", start="earliest", stop_at_end=True) as reader:
        for message in reader:
            steps[message.keys[0]].append(message.body.decode())
    for customer in CUSTOMERS:
        print(customer, "→", ", ".join(steps[customer]))
        assert tuple(steps[customer][-len(STEPS) :]) == STEPS


if __name__ == "__main__":
    main()
