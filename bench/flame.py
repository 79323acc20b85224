"""Where the time of one path goes: a flame graph of the server, or of the Python client, and a table of what it consists of.

    python bench/flame.py --row send-64x1            # or: make flame ROW=send-64x1
    python bench/flame.py --list                     # the paths there are
    python bench/flame.py --table                    # every path once: a line each, for docs/where-the-time-goes.md

py-spy (the extra `profile`) stops the process a hundred times a second and reads the stacks of all its threads, those of C
included. It has to be allowed to: as root, or for children of one's own. What waits is left out: the picture is of work.
CPU per message is measured before, without py-spy, which makes the process slower but all its parts alike.
"""

import argparse
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import broker_rows
import processes

CACHE = processes.ROOT / ".cache" / "bench"
SECONDS = 8.0
SAMPLES_PER_SECOND = 100
Load = Callable[[processes.Server, float], float]
"""Loads a server for so many seconds; the messages it was."""

# -- the paths


def _load(mode: str, server: processes.Server, seconds: float, *, figure: str = "messages", **more: object) -> float:
    generator = str(more.pop("generator", "loadgen"))
    options = {"count": 10**9, "seconds": seconds, **more}
    return processes.load(CACHE, mode, server.address, generator=generator, **options)[figure]


def _pulls(server: processes.Server, seconds: float) -> float:
    if not _filled.get(server.address):
        _load("batch", server, 60, count=8000, batch=100, outstanding=16)
        _filled[server.address] = True
    return _load("pull", server, seconds, figure="requests", outstanding=16)


_filled: dict[str, bool] = {}

_CLIENT = """
import sys, time
from metaq.client.producing.producer import Producer
with Producer(sys.argv[1]) as producer:
    send, body = producer.send, b"x" * 100
    for _ in range(200):
        send("flame", body)
    print("ready", flush=True)
    while (line := sys.stdin.readline()):
        sent, end = 0, time.monotonic() + float(line)
        while time.monotonic() < end:
            send("flame", body)
            sent += 1
        print(sent, flush=True)
"""


@dataclass(frozen=True)
class Way:
    """One way through the server, or through the client."""

    key: str
    work: str
    per: str
    load: Load
    options: tuple[str, ...] = ()
    client: bool = False


WAYS = (
    Way("send", "plain sends, 4 connections × 64 under way, 100 B", "message", partial(_load, "send")),
    Way("send-64x1", "plain sends, 64 connections × 1, 100 B", "message", partial(_load, "send", conns=64, outstanding=1)),
    Way("batch", "batches of 100 × 100 B, 4 × 16 under way", "message", partial(_load, "batch", outstanding=16)),
    Way("pull", "pulls of 32 stored messages, 4 × 16 under way", "pull", _pulls),
    Way(
        "push", "1 000 messages a second to a consumer that waits: sends that wake held pulls", "message",
        partial(_load, "rocketmq", generator="pushload", rate=1000, count=0, figure="delivered"),
    ),
    Way(
        "sync", "64 producers × 1, 1 KB, each answered when it is on the disk", "message",
        partial(_load, "send", conns=64, outstanding=1, body=1000), broker_rows.SYNCED,
    ),
    Way("delayed", "sends with a delay level, 4 × 64 under way", "message", partial(_load, "send", delay=4, verify=0)),
    Way("client-send", "Python client: one `send` after the other", "message", lambda _server, _seconds: 0.0, client=True),
)  # fmt: skip

# -- taking stacks

_WAITS = re.compile(
    r"^(epoll_pwait|epoll_wait|poll|select|pthread_cond_\w+|sem_\w+|clock_nanosleep|PyThread_acquire_lock_timed)\b"
)
_DULL = re.compile(
    r"^(0x[0-9a-f]+ |Py_X?DECREF|Handle__run|Loop_|loop___|loop_|uv_run|uv__io_poll|uv__queue|uv__loop|_run_module|_run_code|thread_run|"
    r"Thread\.|_call_function_pointer|PyCFuncPtr_call|_PyObject|PyObject_|_PyEval|PyEval|Runner\.run|run_until_complete|run_forever|"
    r"<module>|main |_run \(metaq/cli|run \(metaq/app|_start |__libc_start|Py_RunMain|Py_BytesMain|pymain)"
)
_SYSTEM_CALLS = (
    "read", "write", "writev", "send", "sendto", "sendmsg", "recv", "recvfrom", "recvmsg", "pread64", "preadv", "pwrite64", "pwritev",
    "fsync", "fdatasync", "sync_file_range", "msync", "fallocate", "posix_fallocate", "fallocate64", "mmap", "munmap", "madvise",
    "epoll_ctl", "open64", "open", "close", "rename", "mkdir", "unlink", "fstat64", "stat64", "syscall", "eventfd_write", "ftruncate64",
)  # fmt: skip
KINDS = {
    "kernel": ("kernel, through a system call", "#d9822b"),
    "hot": ("native modules", "#3b7dd8"),
    "python": ("our Python", "#4c9f70"),
    "uvloop": ("uvloop and libuv", "#9a6fc4"),
    "library": ("asyncio and the library", "#7fb3a0"),
    "c": ("interpreter and C library", "#b0b7c0"),
}


def kind_of(frame: str) -> str:
    """Whose work a frame is."""
    name, _, where = frame.partition(" (")
    if where.startswith("libc") and name in _SYSTEM_CALLS:
        return "kernel"
    if where.startswith("metaq/"):
        return "python" if ".py" in where else "hot"
    if re.match(r"(loop|stream|core|linux|timer|tcp|uv\w*|loop-watcher|udp|async|handle|queue)\.(c|h|pyx)", where):
        return "uvloop"
    return "library" if ".py" in where else "c"


def folded(text: str) -> Counter[tuple[str, ...]]:
    """Stacks of work, outermost first, without line numbers and without frames that say nothing."""
    found: Counter[tuple[str, ...]] = Counter()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [re.sub(r":\d+\)$", ")", frame) for frame in stack.split(";")]
        if any(_WAITS.match(frame) for frame in frames[-6:]):
            continue
        worker = next((frame for frame in frames if frame.startswith("Worker._run")), None)
        kept = [re.sub(r"\.cpython-\S+\.so", "", frame) for frame in frames if not _DULL.match(frame)]
        kept = [frame for place, frame in enumerate(kept) if not place or frame != kept[place - 1]]
        if kept:
            in_thread = any(frame.startswith(("Thread.run", "_worker")) for frame in frames)
            found["other threads" if worker or in_thread else "event loop", *kept] += int(count)
    return found


def shares(stacks: Counter[tuple[str, ...]]) -> dict[str, float]:
    """Of all samples, the share of each kind, by the innermost frame; and that of the threads beside the loop."""
    total = sum(stacks.values()) or 1
    found = dict.fromkeys(KINDS, 0.0)
    for stack, count in stacks.items():
        found[kind_of(stack[-1])] += count / total
    found["beside the loop"] = sum(count for stack, count in stacks.items() if stack[0] != "event loop") / total
    return found


# -- the picture

WIDTH, ROW, TOP, LEAST = 1200, 17, 62, 0.004


@dataclass
class _Node:
    count: int = 0
    below: dict[str, "_Node"] = field(default_factory=dict)


def svg(stacks: Counter[tuple[str, ...]], title: str, note: str) -> str:
    """A flame graph that hangs down: wider is more work, further down is called by what is above."""
    root = _Node()
    for stack, count in stacks.items():
        node = root
        node.count += count
        for frame in stack:
            node = node.below.setdefault(frame, _Node())
            node.count += count
    boxes = list(_boxes(root, 0, 0.0, root.count or 1))
    depth = max((level for level, *_ in boxes), default=0)
    height = TOP + (depth + 1) * ROW + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="8" y="20" font-size="15" font-weight="bold">{html.escape(title)}</text>',
        f'<text x="8" y="37" fill="#59636e">{html.escape(note)}</text>',
    ]
    at = 8
    for word, color in KINDS.values():
        parts.append(
            f'<rect x="{at}" y="45" width="10" height="10" fill="{color}"/><text x="{at + 14}" y="54">{word}</text>'
        )
        at += 40 + 6 * len(word)
    for level, x, width, frame, share in boxes:
        color = "#d1d9e0" if level == 0 else KINDS[kind_of(frame)][1]
        y = TOP + level * ROW
        text = html.escape(frame)
        parts.append(
            f'<g><title>{text}: {share:.1%}</title><rect x="{x:.1f}" y="{y}" width="{max(0.5, width - 0.6):.1f}" height="{ROW - 1}" fill="{color}"/>'
        )
        if width > 32:
            room = int((width - 6) / 6)
            short = frame if len(frame) <= room else frame.partition(" (")[0][:room]
            parts.append(f'<text x="{x + 3:.1f}" y="{y + 12}">{html.escape(short)}</text>')
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _boxes(node: _Node, level: int, start: float, total: int) -> Iterator[tuple[int, float, float, str, float]]:
    at = start
    for frame, below in sorted(node.below.items(), key=lambda item: -item[1].count):
        width = below.count / total * WIDTH
        if below.count / total >= LEAST:
            yield level, at, width, frame, below.count / total
            yield from _boxes(below, level + 1, at, total)
        at += width


# -- one path


def py_spy() -> str:
    """The program. Raises RuntimeError: it cannot be had."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise RuntimeError("py-spy is not installed: it is the extra `profile`")
    return found


@contextmanager
def _sampling(process_id: int, seconds: float) -> Iterator[list[str]]:
    """What py-spy writes about a process while the body runs."""
    texts: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "stacks"
        command = [
            py_spy(),
            "record",
            "--native",
            "-f",
            "raw",
            "-r",
            str(SAMPLES_PER_SECOND),
            "-d",
            str(max(1, round(seconds))),
        ]
        spy = subprocess.Popen(
            [*command, "-p", str(process_id), "-o", str(output)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield texts
        finally:
            said = spy.communicate(timeout=processes.PATIENCE)[0]
        if not output.exists():
            raise RuntimeError(f"py-spy has no stacks: {said.strip()[-300:]}")
        texts.append(output.read_text())


def measure(path: Way, disk: Path, seconds: float) -> tuple[float, Counter[tuple[str, ...]]]:
    """CPU µs a message without the profiler, and the stacks."""
    with processes.metaq_up(disk, options=path.options) as server:
        if path.client:
            return _client(server, seconds)
        path.load(server, 0.5)
        before = server.cpu_seconds()
        messages = path.load(server, seconds / 2)
        each = (server.cpu_seconds() - before) / messages * 1e6
        with _sampling(server.process.pid, seconds) as texts:
            path.load(server, seconds + 1)
        return each, folded(texts[0])


def _client(server: processes.Server, seconds: float) -> tuple[float, Counter[tuple[str, ...]]]:
    environment = {**os.environ, "PYTHONPATH": str(processes.ROOT / "src")}
    command = [sys.executable, "-c", _CLIENT, server.namesrv]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        client = processes.Server(process, "", 0)

        def send(duration: float) -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{duration}\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        before = client.cpu_seconds()
        messages = send(seconds / 2)
        each = (client.cpu_seconds() - before) / messages * 1e6
        with _sampling(process.pid, seconds) as texts:
            send(seconds + 1)
        process.stdin.close()
    return each, folded(texts[0])


def line(path: Way, each: float, stacks: Counter[tuple[str, ...]]) -> str:
    """A line of the table."""
    found = shares(stacks)
    cells = [f"{found[kind]:.0%}" for kind in KINDS]
    return f"| {path.work} | {each:.2f} | " + " | ".join(cells) + f" | {found['beside the loop']:.0%} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", default="", help=f"comma-separated, of {', '.join(path.key for path in WAYS)}")
    parser.add_argument("--list", action="store_true", help="name the paths")
    parser.add_argument("--table", action="store_true", help="every path, and the table")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for which stacks are taken")
    parser.add_argument("--output", type=Path, default=CACHE / "flames", help="folder for the pictures")
    parser.add_argument("--disk", type=Path, default=CACHE / "disk", help="folder on a real disk for the stores")
    chosen = parser.parse_args()
    if chosen.list:
        print("\n".join(f"{path.key:12} {path.work}" for path in WAYS))
        return 0
    wanted = (
        [path.key for path in WAYS]
        if chosen.table and not chosen.row
        else [key for key in chosen.row.split(",") if key]
    )
    if unknown := set(wanted) - {path.key for path in WAYS}:
        parser.error(f"no such paths: {', '.join(sorted(unknown))}; --list names them")
    if not wanted:
        parser.error("name a path: --row send, or --list")
    try:
        py_spy()
    except RuntimeError as error:
        print(f"skipped: {error}")
        return 77
    for folder in (chosen.output, chosen.disk):
        folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for path in WAYS:
        if path.key not in wanted:
            continue
        each, stacks = measure(path, chosen.disk, chosen.seconds)
        note = f"{each:.2f} µs of CPU a {path.per}; {sum(stacks.values())} samples of work; {time.strftime('%Y-%m-%d')}"
        picture = chosen.output / f"{path.key}.svg"
        picture.write_text(svg(stacks, path.work, note))
        lines.append(line(path, each, stacks))
        print(f"{picture}: {picture.stat().st_size // 1000 + 1} KB, {note}", flush=True)
    if chosen.table:
        print("\n| path | CPU µs | " + " | ".join(word for word, _ in KINDS.values()) + " | beside the loop |")
        print("|---|" + "---|" * (len(KINDS) + 2))
        print("\n".join(lines))
    print(json.dumps({"paths": wanted}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
