"""Send a few orders, consume them as a group, see one fail and come back.

metaq up &
python examples/send_and_consume.py
"""

import os

import metaq

NAMESRV = os.environ.get("NAMESRV_ADDR", "localhost:9876")


def main() -> None:
    with metaq.Producer(NAMESRV) as producer:
        receipt = producer.send("orders", b"order 0", tag="paid", keys=["customer-7"])
        print("stored:", receipt.queue, "offset", receipt.offset, receipt.status.name)
        # submit does not wait: batches are made under way, each future still tells the fate of its own message.
        pending = [producer.submit("orders", f"order {number}".encode(), tag="paid") for number in range(1, 5)]
        producer.submit("orders", b"not for us", tag="cancelled").result()
        for future in pending:
            future.result()

    seen: set[bytes] = set()
    failed_once = False
    with metaq.Consumer(NAMESRV, group="billing", topics={"orders": "paid"}, start="earliest") as consumer:
        for message in consumer:
            with message:  # leaving it acknowledges, an exception gives the message back
                if message.body == b"order 3" and not failed_once:
                    failed_once = True
                    print("order 3 fails; it comes again after a second")
                    raise metaq.Later(delay_level=1)
                seen.add(message.body)
                print("billed:", message.body.decode(), "- attempt", message.reconsume_times + 1)
            if len(seen) == 5:
                break


if __name__ == "__main__":
    main()
