"""An audit's report, its lines for a terminal, and its limits. Without Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.model.trace import Handled
from metaq.pipelines.audit import figures, page, records, text
from metaq.pipelines.audit.figures import (
    AuditFigures,
    Counts,
    Finding,
    GroupFigures,
    KeyCounts,
    TopicCounts,
    WindowCounts,
)
from metaq.pipelines.audit.options import AuditOptions
from metaq.wire.trace import encode
from tests.support import PATIENCE

T0 = 1_772_352_000_000
HOSTILE = (
    "<img src=x onerror=\"document.title='taken over'\"> & '$x$' </style><script>document.title='taken over'</script>"
)


def audit(name: str = "billing", **more) -> AuditFigures:
    """An audit in which everything that an application names is `name`."""
    counts = Counts(sent=100, consumed=90, missing=10, repeated=3, extra=4, stored_twice=1, out_of_order=2, late=5,
                    latency_p50=12, latency_p95=700, latency_p99=65_000, latency_max=90_000)  # fmt: skip
    windows = [WindowCounts(T0 + 60_000 * n, msgspec.structs.replace(counts, latency_p50=12 + n)) for n in (0, 1, 2, 7)]
    findings = [
        Finding(kind=kind, id=name, topic=name, key=name, lane=f"{name}@b:0", place=7, sent_ms=T0, why=name)
        for kind in page.KINDS
    ]
    traced = GroupFigures(
        group=name, evidence="trace", counts=counts, stray=1, topics=[TopicCounts(name, counts), TopicCounts("b", counts)],
        windows=windows, keys=[KeyCounts(name, name, counts)], findings=findings,
    )  # fmt: skip
    blind = GroupFigures(group="blind", evidence="progress", counts=Counts(sent=5, consumed=5))
    made = {
        "made": "2026-03-01T09:40:00Z", "topics": [name], "sent_by": "topic", "consumed_by": "trace", "since_ms": T0,
        "until_ms": T0 + 600_000, "deadline_ms": T0 + 610_000, "window_ms": 60_000, "late_ms": 30_000, "order": "key",
        "sent": 100, "groups": [traced, blind], "breaches": [f"group {name}: 10"], "notes": [name],
    }  # fmt: skip
    return AuditFigures(**(made | more))


class Seen(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.words.append(data)


def test_what_applications_name_is_text_and_nothing_else():
    """Every name, key, id, note and breach: no element comes of it, and it can be read as it is."""
    plain, hostile = Seen(page.render(audit("n")).html), Seen(page.render(audit(HOSTILE)).html)
    assert [tag for tag in hostile.tags if tag in {"script", "img", "link", "iframe"}] == []
    assert sorted(set(hostile.tags)) == sorted(set(plain.tags))
    assert hostile.tags.count("tr") == plain.tags.count("tr")
    assert not [name for name, _ in hostile.attributes if name.startswith("on")]
    shown = "".join(hostile.words)
    assert shown.count(HOSTILE) >= 15
    assert re.search(r"<title>[^<]*&lt;img", page.render(audit(HOSTILE)).html)


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=30))
def test_any_name_leaves_the_page_whole(name):
    """Also control characters, and what looks like markup of any kind."""
    html = page.render(audit(name, groups=[GroupFigures(group=name, evidence="trace", counts=Counts())])).html
    assert Seen(html).tags.count("section") == 2
    assert html.endswith("</main>\n</body>\n</html>\n")


def test_it_stands_alone():
    """No address of another file is in it, and the browser is told to fetch none."""
    html = page.render(audit()).html
    assert re.findall(r"(?:src|href)=\"?(?!#)[^\"> ]+", html.replace("xlink:href", "")) == []
    assert not re.findall(r"url\((?!#)", html)
    assert "default-src 'none'" in html


def test_plots_are_drawn_in_the_page_s_colours():
    """Two of a group that has windows, one of all; no colour of their own would be wrong in the dark."""
    html = page.render(audit()).html
    plots = re.findall(r"<svg .*?</svg>", html, re.DOTALL)
    assert len(plots) == 3
    for plot in plots:
        assert "var(--" in plot
        assert set(re.findall(r"#[0-9a-f]{6}\b", plot)) <= {"#ffffff", "#000000"}, "matplotlib's own"
    assert page.render(audit()).html == html, "the same audit is the same page"


def test_without_matplotlib_the_report_says_so(monkeypatch):
    """It has everything else."""
    monkeypatch.delitem(sys.modules, "metaq.pipelines.audit.plots", raising=False)
    monkeypatch.delattr("metaq.pipelines.audit.plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    drawn = page.render(audit())
    assert "pip install 'pymetaq[plots]'" in drawn.without
    assert "<svg" not in drawn.html
    assert "The report has no plots" in drawn.html


def test_offsets_alone_give_dashes_and_not_zeros():
    """What nobody knows is not said to be none; and what is clean is called so."""
    lines = text.table(audit()).splitlines()
    (blind,) = [line.split() for line in lines if line.startswith("blind")]
    assert blind == ["blind", "progress", "5", "5", "0", "0", *["–"] * 7]
    assert lines[-1] == "NOT CLEAN: group billing: 10"
    (unordered,) = [line.split() for line in text.table(audit(order="off")).splitlines() if line.startswith("billing")]
    assert unordered[4:10] == ["10", "0", "3", "–", "5", "1"]
    assert text.table(audit(breaches=[])).splitlines()[-1] == "clean"
    assert "Audit: clean" in page.render(audit(breaches=[])).html


def test_no_name_steers_the_terminal():
    """Each line stays a line, and colours nothing."""
    name = "\x1b[2Jgone\nNOT"
    lines = text.table(audit(name))
    assert "\x1b" not in lines
    assert len(lines.splitlines()) == len(text.table(audit()).splitlines())


def test_limits():
    """Missing and out of order are not allowed unless somebody says so; the others are unless somebody says not."""
    one = audit().groups[0]

    def beyond(sent=100, **limits):
        return figures.breaches(AuditOptions(**limits), sent, [one])

    assert beyond() == [
        "group billing: 10 messages are missing, and allowMissing is 0",
        "group billing: 2 messages are out of order, and allowOutOfOrder is 0",
    ]
    assert beyond(allow_missing=10, allow_out_of_order=2) == []
    assert beyond(allow_missing=None, allow_out_of_order=None, allow_repeated=3, allow_late=5, allow_stray=1) == []
    assert figures.breaches(AuditOptions(), 7, []) == [
        "no group has consumed any of it, and none is named by groups: nothing was compared"
    ]
    assert figures.breaches(AuditOptions(sent_min=0), 0, []) == []
    tight = beyond(allow_missing=None, allow_out_of_order=None, allow_repeated=2, allow_late=4, allow_stray=0)
    assert [line.split("and ")[1] for line in tight] == ["allowRepeated is 2", "allowLate is 4", "allowStray is 0"]
    assert beyond(0, allow_missing=10, allow_out_of_order=2) == ["0 messages were sent in this time, and sentMin is 1"]


@given(st.integers(0, 1 << 42), st.integers(0, 1 << 42))
def test_windows_fit_any_time(one, other):
    """So many as a plot can show, however long it is."""
    first, last = sorted((one, other))
    length = figures.fitting_window_ms(first, last)
    assert last // length - first // length < figures.WINDOWS_MAX + 1


def test_records_of_a_trace_become_rows():
    """A batch of Java's is a row per message; what cannot be read is counted; an offset id says where it lies."""
    fields = ["Pub", "5", "r", "p", "orders", "A,B", "", "k", "h:1", "3", "2", "0",
              "7F00000100002A9F0000000000000010,7F00000100002A9F0000000000000020", "true"]  # fmt: skip
    body = ("\x01".join(fields) + "\x02" + "Pub\x01x\x02Other\x02").encode()
    rows = list(records.rows_of_body(body))
    assert [(row["what"], row["id"], row["place"]) for row in rows] == [
        ("sent", "A", 0x10), ("sent", "B", 0x20), ("unreadable", "", 2),
    ]  # fmt: skip
    assert {row.get("lane") for row in rows} == {"7F00000100002A9F", None}


def test_rows_of_many_traces_come_in_pieces():
    """However much one batch of bodies unpacks to."""
    record = Handled(request_id="r", message_id="m", time_ms=5, group="g")
    bodies = pa.RecordBatch.from_pydict({"body": [encode([record] * 400)] * 60 + [None]})
    pieces = [len(piece) for piece in records.rows_of(iter([bodies]))]
    assert sum(pieces) == 24_000
    assert max(pieces) < records.ROWS_MAX + 400
    assert len(pieces) == 3


def browser():
    """A Chromium of this machine; skips where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if found := shutil.which(name):
            return found
    return pytest.skip("no Chromium is installed")


@pytest.mark.slow
def test_a_browser_shows_it(tmp_path):
    """Chromium has the text on the page, runs nothing of what names say, and paints more than one colour."""
    file, picture = tmp_path / "report.html", tmp_path / "report.png"
    file.write_text(page.render(audit(HOSTILE)).html)
    command = [
        browser(),
        "--headless=new",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--no-first-run",
    ]
    if os.getuid() == 0:
        command.append("--no-sandbox")
    shown = subprocess.run(
        [*command, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=PATIENCE, check=True
    ).stdout
    assert "taken over</title>" not in re.sub(r"&[^;]+;", "", shown)
    assert re.search(r"<title>Audit: not clean, &lt;img", shown)
    assert len(re.findall("<svg ", shown)) == 3
    subprocess.run(
        [*command, f"--screenshot={picture}", "--window-size=1200,1600", file.as_uri()],
        capture_output=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    image = __import__("matplotlib.image").image.imread(picture)
    colours = {tuple(pixel) for pixel in (image[::7, ::7, :3] * 255).astype(int).reshape(-1, 3).tolist()}
    assert image.shape[:2] == (1600, 1200)
    assert len(colours) > 20
