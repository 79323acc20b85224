"""The steps of `.ci/run`: what each runs, and on what it depends.

They are cut where changes differ: a pipeline's tests depend on the connector, the client's conversation and the broker they
run against, and not on the other pipelines; the foreign clients depend on the broker, and on nothing of Spark. Steps of one
batch that have to run do so in one pytest: a run of ten small ones would wait ten times for its slowest test.
"""

from __future__ import annotations

import dataclasses

COMMON = (
    ".ci/run", ".ci/checks/*", "Makefile", "pyproject.toml", "setup.py", "tests/__init__.py", "tests/conftest.py", "tests/quarantine.txt",
)  # fmt: skip
"""Inputs of every step: what runs them, and how pytest is set up."""

SERVERS = ("metaq.__main__", "metaq.app", "metaq.cli.main", "metaq.cli.servers", "metaq.testing")
"""Brokers and name servers that a test starts as processes."""
COMMANDS = (
    "metaq.admin",
    "metaq.aio",
    "metaq.cli.cluster",
    "metaq.cli.commands",
    "metaq.cli.contexts",
    "metaq.cli.examples",
    "metaq.cli.messages",
    "metaq.cli.store",
    "metaq.cli.topics",
    "metaq.cli.meta1",
    "metaq.cli.transactions",
    "metaq.client",
    "metaq.store.offline",
)
"""What `metaq` commands load when they run; those of pipelines are beside."""
SPARK = ("metaq.spark", "pyspark_metaq", "tests.spark.running")
"""Every session of Spark imports packages that are called `pyspark_…` by itself."""
PIPELINE = (
    *SERVERS, *COMMANDS, *SPARK, "metaq.archive", "metaq.cli.pipeline",
    "metaq.pipelines.driver", "metaq.pipelines.catalogue",
)  # fmt: skip
"""What every pipeline runs on. The catalogue imports the option tables of all of them, and so those are everybody's."""
REPORT = "src/metaq/pipelines/audit/templates/*"

NATIVE = ("src/metaq/*.pyx", "src/metaq/*.pxi", "src/metaq/*.h")
SERVER_SOURCES = tuple(
    f"src/metaq/{name}/*" for name in ("app", "broker", "namesrv", "net", "servers", "store", "wire")
)  # fmt: skip
"""Of the servers, the step `spark` sees every change that a query could see: it reads and writes against them in every way. What
a pipeline does with its own files, and who is killed in between, is asked again in the night."""

PACKED = ("README.md", "LICENSE", "MANIFEST.in")
"""What the wheel takes beside the sources."""

RUN = ".venv/bin/python"
INTEROP = (RUN, "-m", "pytest", "-n", "3", "--dist", "loadgroup", "-m", "not all")
SPARK_ALL = (RUN, "-m", "pytest", "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "-m", "spark_all")
BENCH = (RUN, "-m", "pytest", "-n", "2", "--dist", "worksteal")
LONG = (RUN, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-m", "long")


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of a run. What is not `always` runs when its inputs are others than those it has passed with."""

    name: str
    command: tuple[str, ...]
    """With the test files behind it, where there are `tests`."""
    seconds: int
    """What it takes on a quick machine, of a batch its part."""
    tests: tuple[str, ...] = ()
    """Patterns of its test files."""
    marker: str = ""
    """Of those files only the ones that name this marker."""
    uses: tuple[str, ...] = ()
    """Modules and packages that its processes load by name, beside what the test files import."""
    data: tuple[str, ...] = ()
    """Patterns of other files that it reads, or starts."""
    only: tuple[str, ...] = ()
    """In place of everything above: what alone decides. Its comment says why; what else it opens is not held against it."""
    batch: str = ""
    """Runs in one pytest with others of this name."""
    night: tuple[str, ...] = ()
    """Patterns of those inputs of which a change alone does not run the step here: `make nightly` does. The comment says what
    else sees such a change by day."""
    always: bool = False
    strict: bool = False
    """What it opens is recorded in every run, and held against its inputs."""
    beside: bool = False
    """Runs in the background, while lint, types and foreign clients leave a core free."""
    rerun: bool = True
    """What failed, at most three tests, is run once more, alone."""
    environment: tuple[tuple[str, str], ...] = ()

    def defined(self) -> tuple[object, ...]:
        """What of this definition changes what is run; the list of its inputs is hashed by its files."""
        return self.name, self.command, self.marker, self.environment


def _interop(name: str, seconds: int, *tests: str, uses: tuple[str, ...] = (), data: tuple[str, ...] = ()) -> Step:
    patterns = tuple(f"tests/interop/{test}.py" for test in tests)
    return Step(name, INTEROP, seconds, patterns, uses=(*SERVERS, *COMMANDS, *uses), data=data, batch="interop")


def _spark(
    name: str,
    seconds: int,
    *tests: str,
    uses: tuple[str, ...] = (),
    data: tuple[str, ...] = (),
    night: tuple[str, ...] = (),
) -> Step:
    used = (*SERVERS, *COMMANDS, *SPARK, *uses)
    return Step(name, SPARK_ALL, seconds, tests, "spark_all", used, data, batch="spark", night=night)


def _pipeline(name: str, seconds: int, *, uses: tuple[str, ...] = (), data: tuple[str, ...] = ()) -> Step:
    tests = (f"tests/pipelines/{name}/*",)
    # Spark's programs of the archive read what the other pipelines leave; those name it where they do, by importing it.
    return Step(
        f"pipeline {name}",
        SPARK_ALL,
        seconds,
        tests,
        "spark_all",
        (*PIPELINE, f"metaq.pipelines.{name}", *uses),
        data,
        batch="spark",
        night=SERVER_SOURCES,
    )


STEPS = (
    # Seconds each, and the first to say that something is wrong: always.
    Step("lint", ("make", "lint"), 10, always=True),
    Step("types", ("make", "types"), 40, always=True),
    # The tests that take long for what they show, cut by what they are about.
    Step(
        "long: crashes", LONG, 250, ("tests/crash/*", "tests/broker/*", "tests/store/*", "tests/interop/test_failover_clients.py", "tests/interop/test_xa_kills.py"), "long",
        (*SERVERS, *COMMANDS, "metaq.metaq1", "metaq.xa"), batch="long", beside=True, rerun=False,
    ),
    Step(
        "long: pipelines", LONG, 250, ("tests/pipelines/*",), "long",
        (*PIPELINE, "metaq.pipelines"), (REPORT,), batch="long", beside=True, rerun=False,
    ),
    # They install the wheel, run the demo, count instructions, run the programs of examples/: everything is in there.
    Step(
        "long: whole", LONG, 250, ("tests/test_*", "tests/system/*"), "long", (*PIPELINE, "metaq"),
        ("bench/*", "conf/*", "demo/*", "examples/*", "src/*", *PACKED, "docs/*"), batch="long", beside=True, rerun=False,
    ),
    # The formats on the pure-Python fallback, beside the compiler; its own tests run in fresh-clone, which has none.
    Step(
        "fallback", (RUN, "-m", "pytest", "-n", "3", "--dist", "loadgroup"), 40, ("tests/wire/test_*", "tests/wire/metaq1/*"),
        data=("docs/formats/failover.md",), environment=(("METAQ_HOT", "0"),), strict=True,
    ),
    # Foreign clients, by what they speak: MetaQ 1.x is another server of ours than RocketMQ's.
    _interop("interop metaq1", 130, "test_metaq1_*", uses=("metaq.logging_handler", "metaq.metaq1", "metaq.xa"), data=("docs/metaq1_from_java.md", "docs/which_generation.md", "examples/metaq1/*", "examples/README.md")),
    _interop("interop xa", 60, "test_xa_*", uses=("metaq.metaq1", "metaq.xa")),  # with databases
    _interop(
        "interop rocketmq", 130, "test_acl", "test_address_server", "test_admin_*", "test_cpp_*", "test_dashboard*", "test_drain", "test_fastjson", "test_filters", "test_first_*", "test_go_*", "test_ipv6", "test_java_*",
        "test_migration", "test_mixed_*", "test_mqadmin", "test_option_tools", "test_order", "test_prometheus", "test_replication", "test_shares", "test_sql", "test_staged_*", "test_store_*", "test_tls*", "test_top", "test_trace", data=("tests/interop/cpp/*", "tests/interop/prometheus/*", "tests/wire/fastjson_vectors.json", "src/metaq/dashboard/static/*", "src/metaq/dashboard/templates/*", "examples/gallery/move_from_rocketmq.py", "examples/gallery/picture.py"),
    ),
    # Pairs and groups whose leaders change, under clients of every kind.
    _interop("interop leaders", 80, "test_failover*", "test_pair_ledger", "test_promotion", "test_rolling*"),
    _interop("interop python", 60, "test_python_*"),
    _interop("interop spark", 50, "test_spark_*", "test_slave_reads", uses=SPARK),
    # Without compiler and Java: the demo, and the tests of formats and store with the fallback of the compiled extension. Here, as
    # it waits for downloads while the long tests in the background still work. What it alone can see is how the package is
    # installed and what it needs; our own code is run by the steps `test` and `long: whole`, the demo included.
    Step(
        "fresh-clone", (RUN, "-m", "pytest", "tests/system/test_fresh_clone.py", "--timeout=2400"), 220,
        uses=(*PIPELINE, "metaq.pipelines.archive", "demo"),
        data=(
            "tests/system/test_fresh_clone.py", "tests/wire/*", "tests/store/*", "tests/servers/remoting/test_transaction_fast_path.py",
            "tests/servers/remoting/test_delay_fast_path.py", "tests/system/test_first_whole.py", "README.md", "LICENSE", "MANIFEST.in",
        ),
        night=("src/metaq/*",),
        environment=(("METAQ_FRESH_CLONE", "test-plain"),), rerun=False,  # in there, what failed is run once more
    ),
    # What starts several processes: it depends on nearly everything.
    Step("slow", ("make", "test-slow"), 450, always=True),
    # All that is quick: always. pytest's last line is there then, whatever is unchanged.
    Step("test", ("make", "test"), 370, always=True),
    # The connector; its workers read with the client's conversation, from brokers that the tests start.
    _spark("spark", 110, "tests/spark/test_*", "tests/spark/source/*", "tests/spark/sink/*", "tests/spark/files/*",
           "tests/spark/engine/*", "tests/spark/decode/*", "tests/spark/cluster/*"),
    # Queries on a cluster of MetaQ 1.x whose servers and drivers are killed.
    _spark("spark metaq1", 20, "tests/spark/metaq1/*", night=SERVER_SOURCES),
    # Its programs archive, too.
    _spark("spark connect", 20, "tests/spark/connect/*", uses=("metaq.pipelines.archive",)),
    # Executors get the wheel; whether that is whole is for `long: whole` to say by day.
    _spark(
        "spark standalone", 70, "tests/spark/standalone/*", uses=(*PIPELINE, "metaq.pipelines.archive"),
        data=("src/*", *PACKED, "docs/spark-cluster.md"), night=(*SERVER_SOURCES, *PACKED, *(f"src/metaq/pipelines/{name}/*" for name in (
            "audit", "changes", "compact", "metrics", "mirror", "redrive",
        )), "src/metaq/logging_handler/*"),
    ),
    _spark("spark proof", 80, "tests/spark/proof/*", uses=(*PIPELINE, "metaq.pipelines.archive"), night=SERVER_SOURCES),
    # Programs of pages, on pipelines and decoders.
    _spark(
        "spark pages", 25, "tests/docs/*", uses=(*PIPELINE, "metaq.pipelines.changes", "metaq.pipelines.redrive", "metaq.spark.decode"),
        data=("docs/changes.md", "docs/decoding.md", "docs/redrive.md"), night=SERVER_SOURCES,
    ),
    # Leases, checkpoints, clocks, full disks: with whichever pipeline shows it, so with all of them.
    Step(
        "pipelines", SPARK_ALL, 80, ("tests/pipelines/test_*",), "spark_all", (*PIPELINE, "metaq.pipelines"), (REPORT,), batch="spark",
        night=SERVER_SOURCES,
    ),
    _pipeline("archive", 170, uses=("metaq.pipelines.compact",)),
    _pipeline("audit", 50, uses=("metaq.pipelines.archive", "metaq.pipelines.metrics"), data=("docs/audit.md", REPORT)),
    _pipeline("changes", 40, uses=("metaq.pipelines.archive",)),
    _pipeline("compact", 30, uses=("metaq.pipelines.archive",)),
    _pipeline("metrics", 55),
    _pipeline("mirror", 75),
    _pipeline("redrive", 55),
    # Only the native code decides: the sanitizers look at nothing else, and the same Python over the same native code is held by
    # the tests without them. What calls it hardest is among the inputs, as a new case there may find what was there before.
    Step(
        "sanitized", ("make", "test-sanitized"), 130,
        only=(*NATIVE, "fuzz/*", "tests/sanitized/*", "tests/fuzz/*", "tests/wire/hot/*", "tests/net/test_sweep.py", "src/metaq/wire/hot/*"),
    ),
    # The pinned packages install with all their hashes, and are enough. Only what says which they are decides.
    Step("locked", ("make", "verify-locked"), 120, only=("locks/*", "pyproject.toml"), rerun=False),
    # Every benchmark with small input. Two at a time: they have to run, and what they measure here nobody reads.
    Step(
        "bench", BENCH, 80, ("tests/bench/test_rows.py",), uses=(*SERVERS, *COMMANDS, "metaq.cli.dashboard", "metaq.dashboard", "metaq.metaq1"), batch="bench",
        data=("bench/[!ps]*", "bench/p[!i]*", "bench/s[!p]*", "src/metaq/dashboard/static/*", "src/metaq/dashboard/templates/*"),  # all but Spark's: pipeline_*, spark_*
    ),
    Step(
        "bench spark", BENCH, 80, ("tests/bench/test_spark.py",), uses=(*PIPELINE, "metaq.pipelines.archive", "metaq.pipelines.changes"), data=("bench/*",),
        batch="bench", night=SERVER_SOURCES,
    ),
)  # fmt: skip

LIVES_OF_A_NIGHT = 30_000  # tests/crash/test_simulation.py
PAIRS_OF_A_NIGHT = 200  # tests/crash/test_pair_ledger.py, in each mode
TRIALS_OF_A_NIGHT = 500  # tests/crash/test_trials.py, in each mode
SEEDS, REST = 4, "all and not long and not spark_all"
# A name per line: what failed is seen at once, and not after an hour.
REST_OF = (RUN, "-m", "pytest", "-vv", "-n", "2", "--dist", "loadgroup", "-m", REST)
PEERS, LIVES = ("tests/interop", "tests/differential"), ("tests/crash",)


def nightly(day: int) -> tuple[Step, ...]:
    """Everything, whatever waits by day: with more seeds, others each day, what no step of CI runs, and the steps of CI.

    Args: day: its number in the year.
    """
    known = one_of_each_name(STEPS)
    whole, unsteady_too = ("*",), (("METAQ_QUARANTINE", "run"),)
    more = (
        # The rarest courses of a broker's life, first: what they find is in what all others run on.
        Step(
            "rest of lives", (*REST_OF, *LIVES), 5500, only=whole,
            environment=(
                *unsteady_too, ("METAQ_LIVES_FROM", str(LIVES_OF_A_NIGHT * day)), ("METAQ_PAIRS_FROM", str(PAIRS_OF_A_NIGHT * day)),
                ("METAQ_TRIALS_FROM", str(TRIALS_OF_A_NIGHT * day)),
            ),
        ),
        # Debian's servers, other generations of foreign clients, chaos: what needs an installation or many minutes.
        Step("rest of peers", (*REST_OF, *PEERS), 900, only=whole, environment=unsteady_too),
        Step(
            "rest", (*REST_OF, "tests", *(f"--ignore={part}" for part in (*PEERS, *LIVES, "tests/bench"))), 900,
            only=whole, environment=unsteady_too,
        ),
        dataclasses.replace(
            known["sanitized"], command=("make", "test-sanitized", f"ARGS=--first {1000 * day} --rounds 20000 --lives 400"), seconds=1200,
        ),
        dataclasses.replace(
            known["spark proof"], name="proof", command=("make", "test-proof", f"SEEDS={SEEDS}", f"FIRST={SEEDS * day}"), seconds=800,
            tests=(), marker="", data=("tests/spark/proof/*",), batch="",
        ),
        # A minute for each parser and server. By day each has a fraction of a second, in `test`.
        Step("fuzz", ("make", "fuzz"), 3000, only=whole, rerun=False),
        Step("audit", ("make", "audit"), 60, only=whole, rerun=False),
        Step("lint", ("make", "lint"), 10, only=whole),
        Step("types", ("make", "types"), 40, only=whole),
        Step("slow", ("make", "test-slow"), 450, only=whole, environment=unsteady_too),
        Step("test", ("make", "test"), 370, only=whole, environment=unsteady_too),
        Step("other pythons", ("make", "test-pythons"), 1200, only=whole, environment=unsteady_too, rerun=False),
    )  # fmt: skip
    names = {step.name for step in more}
    steps = (*more, *(step for step in STEPS if step.name not in names))
    all_repeats = ("METAQ_REPEATS", "all")  # tests/effort.py
    return tuple(dataclasses.replace(step, night=(), environment=(*step.environment, all_repeats)) for step in steps)


def one_of_each_name(steps: tuple[Step, ...]) -> dict[str, Step]:
    """Name → step."""
    return {step.name: step for step in steps}
