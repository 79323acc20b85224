"""An order in PostgreSQL and its messages: committed together, or not at all. A process dies in the middle of one.

metaq up &
POSTGRESQL="host=localhost user=me dbname=shop" python examples/xa_postgresql.py

The server needs max_prepared_transactions above 0.
"""

import os
import subprocess
import sys
import tempfile
import time

import psycopg

import metaq
from metaq import xa

NAMESRV = os.environ.get("NAMESRV_ADDR", "localhost:9876")
DATABASE = os.environ.get("POSTGRESQL", "host=localhost dbname=postgres")
FOLDER = os.environ.get("XA_LOG", f"{tempfile.gettempdir()}/xa-postgresql")
TOPIC = "xa-postgresql"


def order(tx: xa.GlobalTransaction, database: xa.TpcDatabase, messages: xa.AtomicMessages, item: str) -> None:
    tx.enlist(database).execute("INSERT INTO xa_orders VALUES (%s)", [item])
    tx.enlist(messages).send(TOPIC, item.encode())


def main() -> None:
    started = time.time()
    database = xa.TpcDatabase(lambda: psycopg.connect(DATABASE))
    with psycopg.connect(DATABASE) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS xa_orders (item TEXT)")
    with metaq.Producer(NAMESRV) as producer:
        messages = xa.AtomicMessages(producer)
        if "dies" in sys.argv:
            with xa.Coordinator(FOLDER, [database, messages]) as coordinator:
                coordinator.recover()
                tx = coordinator.transaction()
                order(tx, database, messages, "chair")
                tx.prepare()
                os._exit(9)  # as a kill -9: both wait for a decision that never came
        died = subprocess.run([sys.executable, __file__, "dies"], check=False)
        with xa.Coordinator(FOLDER, [database, messages]) as coordinator:
            found = coordinator.recover()
            print(f"a process died with exit code {died.returncode}; rolled back: {len(found.rolled_back)}")
            with coordinator.transaction() as tx:
                order(tx, database, messages, "lamp")
    with psycopg.connect(DATABASE) as connection:
        print("ordered:", *(item for (item,) in connection.execute("SELECT item FROM xa_orders")))
    with metaq.Reader(NAMESRV, TOPIC, start=started, stop_at_end=True) as reader:
        print("sent:", *(message.body.decode() for message in reader))


if __name__ == "__main__":
    main()
