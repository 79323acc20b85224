"""Server-side filters of groups of MetaQ 1.x at the MetaQ 1.x server: which frames a get hands out, and how it goes on behind others."""

from __future__ import annotations

import json

import pytest
from msgspec import structs

from metaq.clock import FakeClock
from metaq.model.metaq1.partition import Frames, PartitionGet
from metaq.model.metaq1.settings import PartitionRules
from metaq.wire.metaq1.commands import ResultLine
from metaq.wire.metaq1.frame import Frame, frames
from tests.servers.metaq1.support import TextClient, open_metaq1_server, settings

NAME = "shop.filters:Odd"
NO, YES, RAISED = 0, 1, 2


class Helper:
    """A process whose filter says what the test has given for a body, or answers when the test says so."""

    def __init__(self, told, verdicts):
        self.told, self.verdicts = told, verdicts
        self.asked: list[bytes] = []
        self.silent = False
        self.killed = ""

    def ready(self):
        self.told(self, json.dumps({"errors": {}}).encode(), "")

    def ask(self, question):
        self.asked.append(question)
        if not self.silent:
            self.answer()

    def answer(self):
        name, group, topic, found = parts(self.asked[-1])
        assert (name, group, topic) == (NAME, "odd", "test")
        self.told(self, bytes(self.verdicts.get(frame.body, YES) for frame in found), "")

    def step_back(self): ...

    def kill(self, why):
        self.killed = why

    def close(self):
        pass


def parts(question: bytes) -> tuple[str, str, str, list[Frame]]:
    name, rest = question[1 : 1 + question[0]], question[1 + question[0] :]
    words = [name.decode()]
    for _ in range(2):
        size = int.from_bytes(rest[:2], "big")
        words.append(rest[2 : 2 + size].decode())
        rest = rest[2 + size :]
    return *words, list(frames(rest))


class World:
    """A topic whose group `odd` has a filter."""

    def __init__(self, broker, server, clock, helpers, verdicts):
        self.broker, self.client, self.clock, self.server = broker, TextClient(server), clock, server
        self.helpers, self.verdicts = helpers, verdicts

    def get(self, position, size=1 << 20, group="odd"):
        """Bodies of the frames that came, or where to go on, or code and text."""
        self.client.feed(b"get test %b 0 %d %d 1\r\n" % (group.encode(), position, size))
        return self.answer()

    def answer(self):
        found = self.client.answers()
        if not found:
            return None
        [answer] = found
        if isinstance(answer, ResultLine):
            return int(answer.body) if answer.code == 301 else (answer.code, answer.body.decode())
        whole = list(frames(answer.body))
        rest = answer.body[sum(frame.size for frame in whole) :]
        return [frame.body for frame in whole] + ([rest] if rest else [])


def with_filter(text, name=NAME):
    own = structs.replace(text.rules.topics["test"], filters={"odd": name} if name else {})
    return PartitionRules(text.rules.default, {"test": own}, (), sections=True)


@pytest.fixture
def world(tmp_path):
    helpers, verdicts, clock = [], {}, FakeClock()

    def make_for(names):
        assert dict(names) == {NAME: NAME}

        def make(told):
            helpers.append(Helper(told, verdicts))
            return helpers[-1]

        return make

    text = settings()
    text.exchange(with_filter(text), b"")
    with open_metaq1_server(tmp_path, clock, text, make_filter_helper=make_for) as (broker, server):
        for helper in helpers:
            helper.ready()
        yield World(broker, server, clock, helpers, verdicts)


def put(world, *bodies):
    return [world.client.put(body)[2] for body in bodies]


def test_frames_are_handed_out_so_that_every_position_can_be_asked_for(world):
    """The recorded example: frames of 22, 30, 22, 22 and 22 bytes, of which the first, third and fifth are accepted. The
    original answers three frames in one body, and the next position, 66, is inside the third: its client hangs."""
    assert put(world, b"f1", b"f2-3456789", b"f3", b"f4", b"f5") == [0, 22, 52, 74, 96]
    world.verdicts |= {b"f2-3456789": NO, b"f4": NO}
    assert world.get(0) == [b"f1"]
    assert world.get(22) == 52
    assert world.get(52) == [b"f3"]
    assert world.get(74) == 96
    assert world.get(96) == [b"f5"]
    assert world.get(118)[0] == 404
    assert world.get(0, group="others") == [b"f1", b"f2-3456789", b"f3", b"f4", b"f5"]


def test_a_run_that_is_accepted_is_handed_out_with_the_beginning_of_the_next(world):
    put(world, b"f1", b"f2", b"f3")
    assert world.get(0) == [b"f1", b"f2", b"f3"]
    [first, rest] = world.get(0, size=30)
    assert (first, len(rest)) == (b"f1", 8)


def test_when_all_is_rejected_it_goes_on_behind(world):
    """At the end of what there is; a part of a frame at the end of a get is not passed over."""
    put(world, b"f1", b"f2", b"f3", b"f4")
    world.verdicts |= dict.fromkeys((b"f1", b"f2", b"f3", b"f4"), NO)
    assert world.get(0) == 88
    assert world.get(0, size=30) == 88, "one get looks on, over several reads"
    world.verdicts[b"f3"] = YES
    assert world.get(0, size=30) == 44
    assert world.get(44, size=30)[0] == b"f3"


def test_a_get_looks_no_longer_than_a_second(world):
    """Its client waits for an answer, and keeps how far it has come."""
    put(world, b"f1", b"f2", b"f3")
    world.verdicts |= dict.fromkeys((b"f1", b"f2", b"f3"), NO)
    world.helpers[0].silent = True
    world.client.feed(b"get test odd 0 0 22 1\r\n")
    world.clock.advance(1.1)
    world.helpers[0].answer()
    assert world.answer() == 22


def test_what_is_no_whole_frame_is_not_judged(world):
    """Less than a frame, so that the client asks for more, and what begins in the midst of one."""
    put(world, b"f1", b"f2")
    assert world.get(0, size=10) == world.get(0, size=10, group="all")
    world.client.feed(b"get test odd 0 5 1024 1\r\n")
    assert [len(answer.body) for answer in world.client.answers()] == [39]
    assert world.helpers[0].asked == []


def test_a_filter_that_raises_has_rejected(world):
    put(world, b"f1", b"f2")
    world.verdicts[b"f1"] = RAISED
    assert world.get(0) == 22


def test_a_message_of_which_nobody_can_say_is_handed_out(world):
    """Its filter takes longer than `filterTimeLimit`, or ends its process: nothing is left out for that."""
    put(world, b"f1")
    world.helpers[0].silent = True
    assert world.get(0) is None
    world.clock.advance(1.1)
    world.broker.tick()
    assert "filterTimeLimit" in world.helpers[0].killed
    world.helpers[0].told(world.helpers[0], None, world.helpers[0].killed)
    assert world.answer() == [b"f1"]


def test_answers_keep_their_order_while_frames_are_judged(world):
    put(world, b"f1")
    world.helpers[0].silent = True
    world.client.feed(b"get test odd 0 0 1024 1\r\nversion 2\r\n")
    assert world.client.answers() == []
    world.helpers[0].answer()
    assert [answer.opaque for answer in world.client.answers()] == [1, 2]


def test_a_connection_that_closes_wants_nothing_judged_any_more(world):
    put(world, b"f1")
    world.helpers[0].silent = True
    other = TextClient(world.server)
    for client in (world.client, other, other):
        client.feed(b"get test odd 0 0 1024 1\r\n")
    other.leave()
    world.helpers[0].answer()
    assert world.answer() == [b"f1"]
    assert len(world.helpers[0].asked) == 1


def test_a_reload_loads_the_filters_anew(world):
    """What was being judged is to be asked for again; a group without its filter gets everything."""
    put(world, b"f1")
    world.verdicts[b"f1"] = NO
    text = world.broker.metaq1.settings
    world.helpers[0].silent = True
    assert world.get(0) is None
    text.exchange(with_filter(text), b"")
    code, said = world.answer()
    assert (code, "loaded anew" in said) == (503, True)
    world.helpers[1].ready()
    assert world.get(0) == 22
    text.exchange(with_filter(text, ""), b"")
    assert world.get(0) == [b"f1"]


def test_many_small_frames_are_judged_in_parts(world):
    """A question has at most 256: what is behind them is asked for by the client."""
    for number in range(300):
        world.client.put(b"%03d" % number)
    assert len(world.get(0)) == 256
    world.verdicts |= {b"%03d" % number: NO for number in range(299)}
    assert world.get(0) == 299 * 23


def test_what_waits_to_be_judged_is_counted(world):
    """No more of a get is kept than it has asked about: the limit of bytes is one of memory."""
    for _ in range(40):
        world.client.put(bytes(20_000))
    world.helpers[0].silent = True
    assert world.get(0) is None
    [job] = world.broker.metaq1.partitions.filters._pool._groups["odd of topic test"].jobs
    assert job.size == len(job.records[0].obj) < 300_000


def test_a_frame_that_is_larger_than_a_question_is_judged_alone(world):
    world.client.put(bytes(400_000))
    put(world, b"f2")
    [first] = world.get(0)
    assert len(first) == 400_000
    assert world.get(400_020) == [b"f2"]


def test_whatever_goes_wrong_behind_rejected_frames_is_the_answer(world):
    """A file that cannot be read, for example: nobody waits for an answer that never comes."""
    [position] = put(world, b"no")
    world.verdicts[b"no"] = NO
    found = world.client.ask(b"get test all 0 %d 1024 1\r\n" % position)[1]
    outcomes = []

    def read_on(position):
        raise OSError(5, "Input/output error")

    filters, get = (
        world.broker.metaq1.partitions.filters,
        PartitionGet(topic="test", group="odd", partition=0, position=position, size_max=1024),
    )
    sifting = filters.begin(get, NAME, world.client.session, read_on)
    filters.sift(sifting, Frames(found), whole=True).begin(outcomes.append)
    [outcome] = outcomes
    assert isinstance(outcome, OSError)
