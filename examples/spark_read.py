"""A topic as a DataFrame: what it holds now, counted by tag.

pip install 'pymetaq[spark]'
metaq up &
python examples/spark_read.py
"""

import os

import metaq

NAMESRV = os.environ.get("NAMESRV_ADDR", "localhost:9876")


def main() -> None:
    with metaq.Producer(NAMESRV) as producer:
        for number in range(100):
            tag = "paid" if number % 3 else "refunded"
            producer.submit("spark-orders", b'{"amount": %d}' % number, tag=tag)

    spark = metaq.spark.session("spark_read")
    orders = spark.read.format("metaq").options(nameServers=NAMESRV, subscribe="spark-orders").load()
    orders.selectExpr("tag", "from_json(cast(body as string), 'amount int').amount as amount").createTempView("orders")
    spark.sql("SELECT tag, count(*) AS orders, sum(amount) AS amount FROM orders GROUP BY tag ORDER BY tag").show()
    spark.stop()


if __name__ == "__main__":
    main()
