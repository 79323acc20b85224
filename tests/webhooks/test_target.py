"""One attempt at a target that does what it likes: verdict, text, bounded time and memory."""

from __future__ import annotations

import asyncio
import functools
import ssl
import tracemalloc

import httpcore
import pytest

from metaq.clock import SYSTEM
from metaq.errors import ConfigError
from metaq.net.tls.settings import TlsSettings
from metaq.webhooks.addresses import may_reach, parsed_networks
from metaq.webhooks.answers import Verdict, of_status
from metaq.webhooks.target import Target
from metaq.webhooks.target_options import TargetOptions
from metaq.webhooks.url import TargetUrl
from tests.certificates import Authority
from tests.servers.http.support import in_loop
from tests.support import PATIENCE
from tests.webhooks.receiver import OK, Receiver, raw, status

LOOPBACK = parsed_networks(["127.0.0.0/8"])
FIELDS = {"content-type": "text/plain", "webhook-id": "1"}


@functools.cache
def usual_tls():
    return TlsSettings().open()


@pytest.fixture(scope="module")
def receiver():
    with Receiver() as one:
        yield one


async def post(url, *, body=b"hello", resolve=None, tls=None, times=1, **options):
    """Post once, or some times; the last answer."""
    more = {} if resolve is None else {"resolve": resolve}
    made = TargetOptions(**{"timeout": PATIENCE, "allowed": LOOPBACK, **options})
    target = Target(TargetUrl.of(url), made, tls or usual_tls(), SYSTEM, **more)
    try:
        for _ in range(times):
            answer = await target.post(FIELDS, body)
        return answer
    finally:
        await target.close()


def asked(receiver, answers, **options):
    """Post to a receiver that answers so."""
    receiver.answers = answers
    receiver.posted.clear()
    return asyncio.run(post(receiver.url, **options))


def test_what_is_posted(receiver):
    answer = asked(receiver, OK, headers=(("authorization", "Bearer t"),))
    assert answer.verdict is Verdict.DELIVERED
    posted = receiver.posted[0]
    assert posted.target == "/hook"
    assert posted.body == b"hello"
    assert posted.fields == {
        "host": f"127.0.0.1:{receiver.port}",
        "content-length": "5",
        "content-type": "text/plain",
        "webhook-id": "1",
        "authorization": "Bearer t",
    }


def test_a_connection_is_used_again(receiver):
    before = receiver.connections
    asked(receiver, status(200, b"thanks"), times=5)
    assert receiver.connections == before + 1
    assert len(receiver.posted) == 5


@pytest.mark.parametrize(
    ("code", "verdict", "judged"),
    [
        (200, Verdict.DELIVERED, True),
        (204, Verdict.DELIVERED, True),
        (299, Verdict.DELIVERED, True),
        (300, Verdict.FAILED, True),
        (304, Verdict.FAILED, True),
        (400, Verdict.FAILED, True),
        (404, Verdict.FAILED, True),
        (408, Verdict.FAILED, False),
        (410, Verdict.GONE, True),
        (429, Verdict.FAILED, False),
        (500, Verdict.FAILED, True),
        (502, Verdict.FAILED, False),
        (503, Verdict.FAILED, False),
        (999, Verdict.FAILED, True),
    ],
)
def test_statuses(receiver, code, verdict, judged):
    answer = asked(receiver, status(code, b"so it is" if code not in {204, 304} else b""))
    assert (answer.verdict, answer.status) == (verdict, code)
    assert answer.judged is judged
    assert answer.text == (f"status {code}: so it is" if code not in {204, 304} else f"status {code}")


@pytest.mark.parametrize(
    ("field", "wait"),
    [
        ("7", 7.0),
        (" 0 ", 0.0),
        ("99999999999999999999999999", 300.0),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        ("Tue, 14 Nov 2023 22:13:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 300.0),
        ("-5", None),
        ("soon", None),
        ("", None),
        ("Tue, 99 Nov 2023 99:99:99 GMT", None),
        ("1e9", None),
        ("٣", None),
    ],
)
@pytest.mark.parametrize("code", [429, 503])
def test_retry_after(code, field, wait):
    answer = of_status(code, {"retry-after": field}, b"", 1_700_000_000.0, 300.0)
    if wait is None:
        assert answer.verdict is Verdict.FAILED
    else:
        assert (answer.verdict, answer.wait) == (Verdict.BUSY, wait)
    assert of_status(500, {"retry-after": "7"}, b"", 0.0, 300.0).verdict is Verdict.FAILED


def test_what_a_target_says_does_nothing_to_a_terminal(receiver):
    said = "\x1b[31mred\x07\r\n\tsecond  line\u202e \x00é".encode() + b"\xff" + b"x" * 100_000
    answer = asked(receiver, status(500, said))
    assert answer.text.startswith("status 500: [31mred second line é\ufffdxxx")
    assert len(answer.text) < 220
    assert answer.text.isprintable()


# ---- faults -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "broke off"),
        (b"HTTP/1.1 200 OK\r\ncontent-le", "broke off"),
        (b"\x00\xff garbage\r\n\r\n", "is no HTTP"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "is no HTTP"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "is no HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 50_000, "is no HTTP"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\ntransfer-encoding: x\r\n\r\n",
            "is no HTTP",
        ),
    ],
)
def test_garbage(receiver, data, why):
    answer = asked(receiver, raw(data))
    assert answer.verdict is Verdict.FAILED
    assert why in answer.text
    assert not answer.judged


def test_no_answer_in_time(receiver):
    async def never(_posted, _writer):
        await asyncio.Event().wait()

    answer = asked(receiver, never, timeout=0.1)
    assert answer.verdict is Verdict.FAILED
    assert answer.text == f"no answer of {receiver.url} within 0.1 s"


def test_a_head_byte_by_byte_ends_with_the_whole_time(receiver):
    """Each byte is quick enough; all of them together are not."""

    async def drip(_posted, writer):
        for byte in b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 10_000:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.01)

    answer = asked(receiver, drip, timeout=0.3)
    assert answer.verdict is Verdict.FAILED
    assert "within 0.3 s" in answer.text


def test_endless_interim_answers_end_with_the_whole_time(receiver):
    async def flood(_posted, writer):
        while True:
            writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.001)

    assert "within 0.3 s" in asked(receiver, flood, timeout=0.3).text


@pytest.mark.parametrize("code", [200, 500])
def test_a_body_that_does_not_end_costs_two_seconds_and_the_status_counts(receiver, code):
    async def drip(_posted, writer):
        writer.write(f"HTTP/1.1 {code} X\r\ncontent-length: 1000000\r\n\r\nbegun".encode())
        await writer.drain()
        await asyncio.Event().wait()

    answer = asked(receiver, drip)
    assert answer.status == code
    assert answer.text == f"status {code}: begun"


@pytest.mark.parametrize("kind", ["content-length: 1073741824", "transfer-encoding: chunked", "content-encoding: gzip"])
def test_a_gigabyte_is_not_read(receiver, kind):
    sent = 0

    async def flood(_posted, writer):
        nonlocal sent
        writer.write(f"HTTP/1.1 200 X\r\n{kind}\r\n\r\n".encode())
        piece = b"x" * 65536
        block = b"10000\r\n" + piece + b"\r\n" if "chunked" in kind else piece
        while sent < 1 << 30:
            writer.write(block)
            await writer.drain()
            sent += len(piece)

    tracemalloc.start()
    try:
        answer = asked(receiver, flood)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.verdict is Verdict.DELIVERED
    assert sent < 64 << 20
    assert peak < 16 << 20


def test_nobody_listens():
    with Receiver() as gone:
        url = gone.url
    answer = asyncio.run(post(url))
    assert answer.verdict is Verdict.UNREACHABLE
    assert answer.text == f"no connection to {url}: Connection refused"


@in_loop
async def test_a_name_that_nobody_has():
    answer = await post("http://no-such-host.invalid/hook")
    assert answer.verdict is Verdict.UNREACHABLE
    assert "the name no-such-host.invalid cannot be resolved" in answer.text


@in_loop
async def test_a_resolver_that_does_not_answer():
    async def never(host, port):
        await asyncio.Event().wait()

    answer = await post("http://slow.example/", resolve=never, timeout=0.2)
    assert answer.verdict is Verdict.UNREACHABLE
    assert "the name slow.example was not resolved within 0.1 s" in answer.text


@in_loop
async def test_a_cancelled_attempt_leaves_the_target_usable(receiver):
    async def never(_posted, _writer):
        await asyncio.Event().wait()

    receiver.answers = never
    receiver.posted.clear()
    target = Target(TargetUrl.of(receiver.url), TargetOptions(timeout=PATIENCE, allowed=LOOPBACK), usual_tls(), SYSTEM)
    attempt = asyncio.create_task(target.post(FIELDS, b"1"))
    while not receiver.posted:
        await asyncio.sleep(0.001)
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    receiver.answers = OK
    assert (await target.post(FIELDS, b"2")).verdict is Verdict.DELIVERED
    await target.close()


# ---- redirects --------------------------------------------------------------------------------------------------


def test_redirects_are_not_followed(receiver):
    answer = asked(receiver, status(307, location="/other"))
    assert len(receiver.posted) == 1
    assert answer.verdict is Verdict.FAILED
    assert answer.text == (
        f"status 307: {receiver.url} redirects to {receiver.url.replace('hook', 'other')}: redirects are not followed (redirects=0)"
    )


def test_one_is_followed_if_wanted_with_the_same_body(receiver):
    async def first(posted, writer):
        await (OK if posted.target == "/other?a=b" else status(308, location="/other?a=b"))(posted, writer)

    assert asked(receiver, first, redirects=1, headers=(("authorization", "x"),)).verdict is Verdict.DELIVERED
    assert [one.target for one in receiver.posted] == ["/hook", "/other?a=b"]
    assert receiver.posted[0].body == receiver.posted[1].body
    assert receiver.posted[1].fields["authorization"] == "x"


def test_a_target_that_redirects_to_itself(receiver):
    answer = asked(receiver, status(307, location="/hook"), redirects=3)
    assert len(receiver.posted) == 4
    assert answer.verdict is Verdict.FAILED
    assert "still redirected after 3 redirects" in answer.text


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("http://127.0.0.2:9/private", "127.0.0.2 is no public address"),
        ("http://169.254.169.254/latest/meta-data", "no public address"),
        ("http://[::1]/", "no public address"),
        ("file:///etc/passwd", "redirects to what is no URL"),
        ("http://user:pw@example.com/", "redirects to what is no URL"),
        ("http://ex ample.com/", "redirects to what is no URL"),
    ],
)
def test_a_redirect_leads_to_no_private_address_of_another_host(receiver, location, why):
    """Although this target itself may be in 127.0.0.0/8."""
    answer = asked(receiver, status(307, location=location), redirects=3)
    assert why in answer.text
    assert answer.verdict is not Verdict.DELIVERED
    assert len(receiver.posted) == 1


def test_a_redirect_that_would_be_a_get(receiver):
    answer = asked(receiver, status(302, location="/other"), redirects=3)
    assert "would not be a POST" in answer.text
    assert len(receiver.posted) == 1


def test_another_host_gets_no_header_fields_that_may_be_secret(receiver):
    """Another port is another host. Public addresses cannot be had in a test, so this one is taken for one."""
    with Receiver() as other:
        receiver.answers = status(307, location=other.url)

        async def both():
            made = TargetOptions(timeout=PATIENCE, allowed=LOOPBACK, redirects=1, headers=(("authorization", "x"),))
            target = Target(TargetUrl.of(receiver.url), made, usual_tls(), SYSTEM)
            target._others = target._pool
            try:
                return await target.post(FIELDS, b"hello")
            finally:
                await target.close()

        assert asyncio.run(both()).verdict is Verdict.DELIVERED
        assert "authorization" not in other.posted[0].fields
        assert other.posted[0].fields["webhook-id"] == "1"


# ---- addresses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.9.10", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1",
        "::1", "::", "fe80::1%eth0", "fd00::1", "ff02::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a00:1::",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(address):
    assert not may_reach(address, ())


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses(address):
    assert may_reach(address, ())


def test_networks_that_are_allowed():
    allowed = parsed_networks(["10.0.0.0/8", "fd00::/8", "127.0.0.1"])
    assert may_reach("10.1.2.3", allowed)
    assert may_reach("::ffff:10.1.2.3", allowed)
    assert may_reach("fd00::7", allowed)
    assert may_reach("127.0.0.1", allowed)
    assert not may_reach("127.0.0.2", allowed)
    with pytest.raises(ConfigError, match=r"allowNetworks: '10.0.0.1/8' is no network"):
        parsed_networks(["10.0.0.1/8"])


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "0"]
)
def test_this_machine_is_not_reached_whatever_it_is_called(host, receiver):
    receiver.posted.clear()
    answer = asyncio.run(post(f"http://{host}:{receiver.port}/", allowed=()))
    assert answer.verdict is Verdict.UNREACHABLE
    assert "no public address: name its network in allowNetworks" in answer.text
    assert not receiver.posted


@in_loop
async def test_a_name_that_changes_its_address_behind_the_check(receiver):
    """DNS rebinding: public at the first look, this machine at the second. There is no second."""
    looks = []

    async def rebinding(host, port):
        looks.append(host)
        return ["93.184.216.34"] if len(looks) == 1 else ["127.0.0.1"]

    connected = []

    class Recording:
        async def connect_tcp(self, host, *more):
            connected.append(host)
            raise httpcore.ConnectError("not in a test")

    target = Target(
        TargetUrl.of(f"http://rebind.example:{receiver.port}/"), TargetOptions(timeout=PATIENCE), usual_tls(), SYSTEM, rebinding
    )  # fmt: skip
    target._pool._network_backend._inner = Recording()
    await target.post(FIELDS, b"")
    assert (looks, connected) == (["rebind.example"], ["93.184.216.34"])
    answer = await target.post(FIELDS, b"")
    assert connected == ["93.184.216.34"]
    assert "no public address" in answer.text
    await target.close()


def test_only_those_of_several_addresses_that_may_be_reached_are_tried(receiver):
    async def both(host, port):
        return ["127.0.0.2", "127.0.0.1"]

    receiver.answers = OK
    answer = asyncio.run(
        post(f"http://both.example:{receiver.port}/", resolve=both, allowed=parsed_networks(["127.0.0.1"]))
    )
    assert answer.verdict is Verdict.DELIVERED


# ---- TLS --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


def context(issued):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(issued.cert, issued.key)
    return made


def test_a_certificate_is_checked(authority):
    good, foreign_name = authority.issue("good"), authority.issue("other", hosts=("other.example",))
    old = authority.issue("old", days=(-10, -1))
    trusting = TlsSettings(ca=str(authority.cert)).open()
    with Receiver(tls=context(good)) as receiver:
        assert asyncio.run(post(receiver.url, tls=trusting)).verdict is Verdict.DELIVERED
        answer = asyncio.run(post(receiver.url))
        assert answer.verdict is Verdict.UNREACHABLE
        assert "certificate verify failed" in answer.text
        assert len(receiver.posted) == 1
    for wrong in (foreign_name, old):
        with Receiver(tls=context(wrong)) as receiver:
            answer = asyncio.run(post(receiver.url, tls=trusting))
            assert (answer.verdict, receiver.posted) == (Verdict.UNREACHABLE, [])
            assert "certificate verify failed" in answer.text


def test_https_to_a_port_that_speaks_http(receiver):
    answer = asyncio.run(post(receiver.url.replace("http", "https"), timeout=0.4))
    assert answer.verdict is Verdict.UNREACHABLE
    assert answer.text.endswith(": it does not answer in time")


def test_https_does_not_follow_to_http(authority):
    trusting = TlsSettings(ca=str(authority.cert)).open()
    with Receiver(status(307, location="http://example.com/"), tls=context(authority.issue("again"))) as receiver:
        answer = asyncio.run(post(receiver.url, tls=trusting, redirects=3))
    assert "which is not encrypted" in answer.text


# ---- URLs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "url is missing"),
        ("example.com/hook", "need http:// or https://"),
        ("ftp://example.com/", "need http:// or https://"),
        ("http://", "need http:// or https://"),
        ("http:///path", "need http:// or https://"),
        ("http://example.com:0/", "need http:// or https://"),
        ("http://example.com:99999/", "url: "),
        ("http://[::1/", "url: "),
        ("http://me:secretpw@example.com/", "Authorization"),
        ("http://example.com/#x", "#"),
        ("http://exämple.com/", "printable ASCII"),
        ("http://example.com/a b", "printable ASCII"),
        ("http://example.com/\r\nx: y", "printable ASCII"),
        ("http://example.com/" + "a" * 3000, "at most 2000"),
    ],
)
def test_urls_that_are_none(text, why):
    with pytest.raises(ConfigError) as caught:
        TargetUrl.of(text)
    assert why in str(caught.value)
    assert "secretpw" not in str(caught.value)


def test_a_url_is_shown_without_its_query():
    url = TargetUrl.of("https://Example.com:443/hook?token=secret")
    assert str(url) == "https://example.com/hook?…"
    assert "secret" not in repr(url)
    assert url.full == "https://example.com/hook?token=secret"
    assert TargetUrl.of("http://[2606:4700::1]:8080").full == "http://[2606:4700::1]:8080/"
