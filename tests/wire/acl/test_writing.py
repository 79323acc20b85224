"""ACL files as they are written, and what stays of an administrator's text when they are changed."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from metaq.errors import ConfigError
from metaq.model.acl.accounts import Account, AclFile
from metaq.model.acl.addresses import parse_pattern
from metaq.model.acl.rights import BOTH, Right
from metaq.model.acl.secret import Secret
from metaq.model.topics.topic import DataVersion
from metaq.wire.acl import tree
from metaq.wire.acl.reading import read
from metaq.wire.acl.writing import rewrite, write

NAME = "plain_acl.yml"

printable = st.characters(exclude_categories=["C", "Z"])
keys = st.text(printable, min_size=7, max_size=12).filter(lambda text: not text.startswith("*")) | st.sampled_from(
    [
        "RocketMQ",
        "12345678",
        "0012345",
        "12:30:45",
        "1_000_000",
        "2024-01-01",
        "12e45678",
        "# a comment",
        "- a list",
        "'quoted'",
    ]
)
names = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="="), min_size=1, max_size=8).filter(
    lambda text: text != "*"
) | st.sampled_from(["null", "true", "%RETRY%g", "orders", "1"])
perms = st.dictionaries(names, st.sampled_from([Right.DENY, Right.PUB, Right.SUB, BOTH]), max_size=3)
patterns = st.sampled_from(["10.0.*.*", "10.0.0.{1,2}", "2001:db8:*", "*", "1:2:3:4:5:6:7:8"]).map(parse_pattern)
accounts = st.builds(
    Account,
    keys,
    keys.map(Secret),
    patterns | st.just(parse_pattern("")),
    st.booleans(),
    st.sampled_from([Right.DENY, Right.PUB]),
    st.sampled_from([Right.DENY, BOTH]),
    perms,
    perms,
)
files = st.builds(
    AclFile,
    st.lists(patterns, max_size=3).map(tuple),
    st.lists(accounts, max_size=3, unique_by=lambda account: account.access_key).map(tuple),
    st.builds(DataVersion, st.integers(0, 1 << 62), st.integers(0, 1 << 62)),
)

TEXT = b"""\
# who may what

globalWhiteRemoteAddresses:   # machines
  - 10.10.103.*
  - 192.168.0.*               # the office

accounts:
  # of the shop
  - accessKey: RocketMQ       # asked for by Ann
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB        # both
    # groups
    groupPerms: [groupA=DENY]

  # of the operators
  - accessKey: rocketmq2
    secretKey: "87654321"
    admin: true

# the end
"""
FILE = read(TEXT, NAME)


def lines(data):
    return data.decode().split("\n")


def difference(data):
    """Lines that are gone, and lines that are new."""
    before, after = lines(TEXT), lines(data)
    return [line for line in before if line not in after], [line for line in after if line not in before]


@given(files)
def test_what_is_written_is_read_again(file):
    """Whatever is in names and secrets, and however YAML would take it without quotes."""
    assert read(write(file), NAME) == file


@given(files, files)
def test_every_file_can_be_changed_into_every_other(old, new):
    """The values afterwards are those that are wanted, whether in place or not."""
    rewritten = rewrite(write(old), new, NAME)
    assert read(rewritten.data, NAME) == new


@given(accounts, st.lists(patterns, min_size=1, max_size=3))
def test_what_requests_change_is_changed_in_place(account, white):
    """A new account, another white list, an account less: comments and everything else stay."""
    for wanted in (
        FILE.with_account(account, 7),
        FILE.with_white(white, 7),
        FILE.without_account("RocketMQ", 7).with_account(replace(account, access_key="rocketmq2"), 8),
    ):
        rewritten = rewrite(TEXT, wanted, NAME)
        assert rewritten.comments_kept
        assert read(rewritten.data, NAME) == wanted
        for comment in (b"# who may what", b"# of the shop", b"# of the operators", b"# the end"):
            assert rewritten.data.count(comment) == 1


def test_an_account_is_changed_where_it_is():
    """Only the lines of what has changed differ."""
    old = FILE.account("RocketMQ")
    wanted = FILE.with_account(
        replace(old, secret_key=Secret("new secret"), topics={"topicC": Right.SUB}), 1700000000000
    )
    gone, new = difference(rewrite(TEXT, wanted, NAME).data)
    assert gone == ["    secretKey: 12345678", "      - topicA=DENY", "      - topicB=PUB|SUB        # both"]
    assert new == [
        '    secretKey: "new secret"',
        "      - topicC=SUB        # both",
        "dataVersion:",
        "- {counter: 1, timestamp: 1700000000000}",
    ]


def test_an_account_is_added_behind_the_others():
    """Indented as they are."""
    wanted = replace(FILE, accounts=(*FILE.accounts, Account("another", Secret("12345678"), groups={"g": Right.SUB})))
    gone, new = difference(rewrite(TEXT, wanted, NAME).data)
    assert gone == []
    assert new == [
        "  - accessKey: another",
        '    secretKey: "12345678"',
        '    whiteRemoteAddress: ""',
        "    defaultGroupPerm: DENY",
        "    topicPerms: []",
        "    groupPerms:",
        "    - g=SUB",
    ]


def test_an_account_goes_with_its_lines():
    """The comment above it stays, whatever it is about."""
    wanted = replace(FILE, accounts=FILE.accounts[:1])
    gone, new = difference(rewrite(TEXT, wanted, NAME).data)
    assert (gone, new) == (["  - accessKey: rocketmq2", '    secretKey: "87654321"', "    admin: true"], [])


def test_the_version_is_counted_on():
    """RocketMQ keeps it at the end of the file, and clients compare it."""
    text = TEXT + b"dataVersion:\n- counter: 4\n  timestamp: 1600000000000\n"
    wanted = read(text, NAME).without_account("rocketmq2", 1700000000000)
    assert wanted.version == DataVersion(1700000000000, 5)
    data = rewrite(text, wanted, NAME).data
    assert read(data, NAME) == wanted
    assert data.endswith(b"dataVersion:\n- {counter: 5, timestamp: 1700000000000}\n")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (b"", True),
        (b"# nothing yet\n", True),
        (b"accounts: []  # none", True),
        (b"accounts:  # none\n# end", True),
        (b"accounts: []\ndataVersion:\n", True),
        (b"globalWhiteRemoteAddresses: [10.0.0.1]  # one", True),
        (b"{accounts: []}\n", True),
        (b"{accounts: []}  # short\n", False),
        (b"accounts: [{accessKey: RocketMQ, secretKey: 12345678}]  # short\n", False),
    ],
)
def test_files_are_changed_however_they_are_written(text, kept):
    """Where that is not possible in place, all is written anew, and the caller is told that comments are gone."""
    wanted = read(text, NAME).with_account(Account("another", Secret("12345678")), 1700000000000)
    rewritten = rewrite(text, wanted, NAME)
    assert read(rewritten.data, NAME) == wanted
    assert rewritten.comments_kept is kept
    assert not kept or all(comment in rewritten.data for comment in text.split(b"#")[1:])


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace(b"\n", b"\r\n"),
        TEXT.replace(b"# who may what", "# wer darf was, naïve 😀😀".encode()),
        b"\xef\xbb\xbf" + TEXT,
        TEXT.rstrip(),
        TEXT.replace(b"  - ", b"  -   ").replace(b"\n    ", b"\n      "),
        TEXT.replace(b"\n  ", b"\n"),
    ],
    ids=["crlf", "characters", "mark", "no end", "wide", "narrow"],
)
@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
def test_places_in_the_text_are_right_whatever_it_is_made_of(text, loader, monkeypatch):
    """Ends of lines of another system, characters of several bytes, other indents; by both parsers."""
    if not hasattr(yaml, loader):
        pytest.skip("PyYAML was built without libyaml")
    monkeypatch.setattr(tree, "_Loader", getattr(yaml, loader))
    old = read(text, NAME).accounts[0]
    assert read(text, NAME) == FILE
    wanted = FILE.with_account(replace(old, topics={}, groups={"g": Right.SUB}), 7)
    wanted = wanted.with_account(Account("another", Secret("12345678")), 8).with_white([], 9)
    rewritten = rewrite(text, wanted, NAME)
    assert rewritten.comments_kept
    assert read(rewritten.data, NAME) == wanted
    assert rewritten.data.count(b"#") == text.count(b"#") - 1  # the one between the white list and its first entry


def test_a_broken_file_is_not_written_over():
    """What its administrator meant is not known."""
    with pytest.raises(ConfigError, match="line 1"):
        rewrite(b"accounts: 3", FILE, NAME)
    with pytest.raises(ConfigError, match="not UTF-8"):
        rewrite(b"# \xff", FILE, NAME)
