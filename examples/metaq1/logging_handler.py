"""Log to a topic: records of the standard `logging` become messages, as the log4j appender of MetaQ 1.x made them.

python examples/metaq1/logging_handler.py --zookeeper 127.0.0.1:2181 --topic business-logs

Logging never waits: a thread of the handler sends, and tries again while no server answers.
"""

import logging

from options import arguments

import metaq


def main() -> None:
    config, options = arguments(__doc__, topic="business-logs")
    handler = metaq.MetaQ1Handler(config, topic=options.topic, service="checkout")
    shop = logging.getLogger("shop")
    shop.setLevel(logging.INFO)
    shop.addHandler(handler)
    for number in range(options.count):
        # The body is a JSON object with time, level, message and `extra`; the attribute is the level.
        shop.info("order %d", number, extra={"order": number})
    try:
        print(100 / (options.count - options.count))
    except ZeroDivisionError:
        shop.exception("the order has no items")
    # The end of the program waits up to five seconds for what is not sent yet; `flush` says whether all of it is.
    print("all records are stored" if handler.flush(10.0) else f"{handler.waiting} records wait")
    print(f"{handler.sent} sent, {sum(handler.dropped.values())} dropped")


if __name__ == "__main__":
    main()
