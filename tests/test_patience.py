"""No test depends on time being kept: what must come is awaited for tests.support.PATIENCE, by name."""

from __future__ import annotations

import ast
import pathlib

import pytest
from hypothesis import HealthCheck, settings

from tests.support import PATIENCE, ROOT, TEST_SECONDS, WHOLE_PATIENCE, WHOLE_TEST_SECONDS

FIRST = {"result", "exception", "join", "wait", "receive", "settimeout", "awaitTermination"}
"""Calls whose only positional argument is a time-out in seconds."""
SECOND = {"wait_for", "create_connection", "eventually"}
"""Calls whose second positional argument is one."""
SHORT = 1.0
"""Up to here a time-out is not for what must come: it polls, or shows that something does not come."""
MEANT = {
    # The time-out itself is what is tested, or no seconds are meant.
    "tests/admin/test_growth.py: admin.move_topic('move-lag', A, B, quiet_seconds=0.5, timeout=2, progress=waited.append)",
    "tests/app/tls/test_servers.py: asyncio.wait_for(ask(address, context), 2)",  # for what must not come
    # How long there is load.
    "tests/examples/test_order_service.py: drill.run(metaq_broker.namesrv, tmp_path, seconds=4, kills=3, seed=1, clients=2)",
    "tests/examples/test_table_to_lake.py: example.run(spark, metaq_broker.namesrv, Path(tempfile.mkdtemp(dir=tmp_path)), seconds=3)",
    "tests/interop/test_python_client.py: consumer.receive(2)",  # the same
    "tests/interop/test_tls.py: metaq.Producer(server.namesrv, timeout=3.0)",  # whose sends must fail
    "tests/spark/files/test_live.py: metaq.Producer(broker.namesrv, timeout=10.0)",  # the same, behind a kill
    "tests/testing/test_cluster.py: metaq.Producer(mended.namesrv, timeout=2.0)",  # the same
    "tests/spark/test_jvm.py: archived(archive, HANGS.format(str(child)), seconds=3.0)",
    "tests/store/test_durability.py: quiet(disk, file_reserved_time=1)",
}
FOLDERS = sorted({path.parent for path in (ROOT / "tests").rglob("*.py") if "cpp" not in path.parts})


def limits(call: ast.Call) -> list[ast.expr]:
    """The arguments of a call that are time-outs in seconds."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    found = [keyword.value for keyword in call.keywords if keyword.arg in {"timeout", "seconds"}]
    if name in FIRST and len(call.args) == 1:
        found.append(call.args[0])
    if name in SECOND and len(call.args) > 1:
        found.append(call.args[1])
    return found


def is_short(limit: ast.expr | None) -> bool:
    return isinstance(limit, ast.Constant) and isinstance(limit.value, (int, float)) and SHORT < limit.value < PATIENCE


def too_short(path: pathlib.Path) -> list[str]:
    """The calls and defaults of a file that give what must come a number of seconds of their own."""
    name, found = path.relative_to(ROOT).as_posix(), []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            if not any(map(is_short, limits(node))):
                continue
            text = ast.unparse(node)
            # The foreign clients' `wait` and a protocol's `receive` take a count.
            counts = text.startswith(("one.receive", "greedy.receive", "driven["))
            if not counts and f"{name}: {text}" not in MEANT:
                found.append(f"{name}, line {node.lineno}: {text}")
        elif isinstance(node, ast.FunctionDef):
            named = [*node.args.args[len(node.args.args) - len(node.args.defaults) :], *node.args.kwonlyargs]
            for argument, default in zip(named, [*node.args.defaults, *node.args.kw_defaults], strict=True):
                if argument.arg in {"timeout", "seconds"} and is_short(default):
                    found.append(f"{name}, line {node.lineno}: {argument.arg} of {node.name}")
    return found


@pytest.mark.parametrize("folder", FOLDERS, ids=[path.relative_to(ROOT).as_posix() for path in FOLDERS])
def test_what_must_come_is_awaited_with_patience(folder):
    """A number of seconds that is enough on a quiet machine is not enough on a busy one."""
    assert [found for path in sorted(folder.glob("*.py")) for found in too_short(path)] == []


def test_the_rule_finds_what_it_is_for(tmp_path):
    """Waits for processes, threads, futures and messages, and defaults of helpers."""
    lines = (
        "future.result(5)", "child.wait(10)", "eventually(x, 30)", "run(command, timeout=60)", "consumer.receive(10)",
        "def f(x, timeout=15.0): pass", "def f(*, seconds=2): pass",
    )  # fmt: skip
    file = ROOT / "tests" / "unwritten.py"

    class Text(type(file)):  # a file of these lines where the others are
        def read_text(self):
            return "\n".join(lines)

    assert len(too_short(Text(file))) == len(lines)


def test_limits_go_up_from_a_wait_to_the_test_around_it(request):
    """So that the innermost tells what did not come."""
    assert PATIENCE < WHOLE_PATIENCE < WHOLE_TEST_SECONDS
    assert PATIENCE < TEST_SECONDS
    assert request.node.get_closest_marker("timeout").args == (TEST_SECONDS,)


def test_property_tests_have_no_deadline():
    """A slow example says nothing about the code."""
    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check
