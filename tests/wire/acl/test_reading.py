"""ACL files as RocketMQ's users have them, and what is said of broken ones."""

from __future__ import annotations

import re
import resource

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from metaq.errors import ConfigError
from metaq.model.acl.accounts import Account, AclFile
from metaq.model.acl.addresses import parse_pattern
from metaq.model.acl.rights import BOTH, Right
from metaq.model.acl.secret import Secret
from metaq.model.topics.topic import DataVersion
from metaq.wire.acl import tree
from metaq.wire.acl.reading import read, read_credentials

NAME = "plain_acl.yml"

ROCKETMQS = b"""\
# the file that RocketMQ brings
globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.*

accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  # the group should convert to retry topic
  - groupA=DENY
  - groupB=PUB|SUB
  - groupC=SUB

- accessKey: rocketmq2
  secretKey: 12345678
  whiteRemoteAddress: 192.168.1.*
  # if it is admin, it could access all resources
  admin: true
"""


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def _each_parser(request, monkeypatch):
    """Both parsers of PyYAML: that in C is not everywhere."""
    if not hasattr(yaml, request.param):
        pytest.skip("PyYAML was built without libyaml")
    monkeypatch.setattr(tree, "_Loader", getattr(yaml, request.param))


each_parser = pytest.mark.usefixtures("_each_parser")


def one(**fields):
    """The bytes of a file with one account."""
    lines = {"accessKey": "RocketMQ", "secretKey": "'12345678'", **fields}
    return ("accounts:\n-" + "\n ".join(f" {key}: {value}" for key, value in lines.items()) + "\n").encode()


@each_parser
def test_rocketmqs_own_file_is_read():
    """Numbers are texts where texts are wanted, and what is absent is DENY."""
    assert read(ROCKETMQS, NAME) == AclFile(
        (parse_pattern("10.10.103.*"), parse_pattern("192.168.0.*")),
        (
            Account(
                "RocketMQ",
                Secret("12345678"),
                default_group=Right.SUB,
                topics={"topicA": Right.DENY, "topicB": BOTH, "topicC": Right.SUB},
                groups={"groupA": Right.DENY, "groupB": BOTH, "groupC": Right.SUB},
            ),
            Account("rocketmq2", Secret("12345678"), parse_pattern("192.168.1.*"), admin=True),
        ),
    )


@each_parser
@pytest.mark.parametrize(
    "data",
    [b"", b"# nothing\n", b"\xef\xbb\xbfaccounts:\n", b"---\naccounts: ~\nglobalWhiteRemoteAddresses: []\n", b"null"],
)
def test_an_empty_file_has_no_rules(data):
    """RocketMQ makes one where there is none."""
    assert read(data, NAME) == AclFile()


@each_parser
def test_a_file_that_rocketmq_has_written_is_read():
    """With the version that it counts, in 4.x and with the field that 5.x adds."""
    text = ROCKETMQS + b"dataVersion:\n- counter: 3\n  timestamp: 1700000000000\n  stateVersion: 0\n"
    assert read(text, NAME).version == DataVersion(1700000000000, 3)


@pytest.mark.parametrize(
    ("secret", "is_"),
    [
        ("1234567", "1234567"),
        ("'0012345'", "0012345"),
        ('"a # b: c*"', "a # b: c*"),
        ("a#b:c*d!", "a#b:c*d!"),
        ("0123456789", "0123456789"),
    ],
)
def test_secrets_are_taken_as_they_are_written(secret, is_):
    """In quotes, without, and as a number."""
    assert read(one(secretKey=secret), NAME).accounts[0].secret_key == Secret(is_)


BROKEN = [
    (b"accounts:\n- accessKey: RocketMQ\n  secretKey: 'GEHEIM78\n", 4, "this is not YAML"),
    (b"accounts:\n- accessKey: RocketMQ\n\tsecretKey: GEHEIM78\n", 3, "this is not YAML"),
    (b"accounts:\n- accessKey: RocketMQ\n  secretKey: GEHEIM78: GEHEIM78\n", 3, "this is not YAML"),
    (b"accounts:\n- accessKey: RocketMQ\n  secretKey: !GEHEIM!78\n", 3, "this is not YAML"),
    (b"accounts:\n- accessKey: RocketMQ\n  secretKey: !GEHEIM78\n", 3, "tags (!) are not taken"),
    (b"accounts:\n- accessKey: RocketMQ\n  secretKey: &GEHEIM78\n", 3, "anchors (&) and aliases (*)"),
    (b"accounts:\n- accessKey: RocketMQ\n  secretKey: *GEHEIM78\n", 3, "anchors (&) and aliases (*)"),
    (b"accounts:\n- accessKey: RocketMQ\n  secretKey: \x00\n", 3, "a character that YAML does not allow"),
    (b"accounts:\n- accessKey: RocketMQ\n  secretKey: \xff\n", 3, "byte 45 is not UTF-8"),
    (
        b"accounts:\n- {accessKey: RocketMQ, secretKey:GEHEIM78}\n",
        2,
        "an account has an unknown key; known are accessKey",
    ),
    (b"accounts: []\n---\naccounts: []\n", 2, "a second document"),
    (b"- accounts\n", 1, "the file must be a map of globalWhiteRemoteAddresses, accounts, dataVersion"),
    (b"acounts: []\n", 1, "the file has an unknown key acounts; is accounts meant?"),
    (b"accounts: []\nquotas: []\n", 2, "the file has an unknown key quotas; known are"),
    (b"accounts: []\naccounts: []\n", 2, "accounts is there twice"),
    (b"accounts: yes\n", 1, "accounts must be a list"),
    (b"accounts:\n- RocketMQ\n", 2, "an account must be a map of accessKey"),
    (b"? [a]\n: b\n", 1, "a list or map cannot be a key"),
    (b"globalWhiteRemoteAddresses: 10.0.0.1\n", 1, "globalWhiteRemoteAddresses must be a list"),
    (
        b"globalWhiteRemoteAddresses:\n- 10.0.0.1\n- 300.1.1.1\n",
        3,
        "globalWhiteRemoteAddresses: '300.1.1.1': '300' is above 255",
    ),
    (b"globalWhiteRemoteAddresses:\n- *\n", 2, "Texts with any of * & !"),
    (b"globalWhiteRemoteAddresses:\n- 1:2:3:4:5:6:7:8\n", 2, "put it in quotes"),
    (b"globalWhiteRemoteAddresses:\n- [10.0.0.1]\n", 2, "globalWhiteRemoteAddresses must be a text"),
    (one(secretkey="GEHEIM78"), 4, "an account has an unknown key secretkey; is secretKey meant?"),
    (one(accessKey="short1"), 2, "accessKey has 6 characters; it must be longer than 6"),
    (one(accessKey="'*anybody'"), 2, "must not begin with '*'"),
    (one(secretKey="GEHEIM"), 3, "secretKey of RocketMQ has 6 characters; it must be longer than 6"),
    (one(secretKey=""), 3, "secretKey of RocketMQ is missing"),
    (one(secretKey="' GEHEIM78'"), 3, "begins or ends with a blank"),
    (one(secretKey="'GEHEIM\\x01'").replace(b"'", b'"'), 3, "cannot be printed"),
    (one(secretKey="[GEHEIM78]"), 3, "secretKey of RocketMQ must be a text"),
    (b"accounts:\n- accessKey: RocketMQ\n", 2, "secretKey of RocketMQ is missing"),
    (b"accounts:\n- secretKey: GEHEIM78\n", 2, "an account has no accessKey"),
    (one(admin="'true'"), 4, "admin of RocketMQ must be true or false, without quotes"),
    (one(admin="1"), 4, "admin of RocketMQ must be true or false"),
    (one(defaultTopicPerm="pub"), 4, "defaultTopicPerm of RocketMQ: 'pub' is no permission: write DENY, PUB"),
    (one(defaultGroupPerm="ANY"), 4, "defaultGroupPerm of RocketMQ: 'ANY' is no permission"),
    (one(whiteRemoteAddress="10.0.0.0/8"), 4, "whiteRemoteAddress of RocketMQ: '10.0.0.0/8': networks"),
    (one(topicPerms="orders=PUB"), 4, "topicPerms of RocketMQ must be a list"),
    (one(topicPerms="[orders]"), 4, "an entry is written topic=PUB|SUB"),
    (one(topicPerms="[orders=PUB=SUB]"), 4, "an entry is written topic=PUB|SUB"),
    (one(topicPerms="[orders: PUB]"), 4, "topicPerms of RocketMQ must be a text"),
    (one(topicPerms='["*=PUB"]'), 4, "'*' is no name; defaultTopicPerm is for all"),
    (one(groupPerms="[g=SUB, g=PUB]"), 4, "group g is there twice"),
    (one() + one().removeprefix(b"accounts:\n"), 4, "the accessKey RocketMQ is in line 2 already"),
    (b"dataVersion:\n- counter: 1e3\n", 2, "dataVersion counter must be a whole number"),
    (b"dataVersion:\n- counter: 9999999999999999999\n", 2, "dataVersion counter must be a whole number"),
]


@each_parser
@pytest.mark.parametrize(("data", "line", "reason"), BROKEN, ids=[reason[:40] for _, _, reason in BROKEN])
def test_what_is_broken_is_named_with_its_line_and_reason(data, line, reason):
    """And never with a secret, however the file is broken around it."""
    with pytest.raises(ConfigError) as caught:
        read(data, NAME)
    text = str(caught.value)
    assert text.startswith(f"{NAME}, line {line}: ")
    assert reason in text
    assert "GEHEIM" not in text
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    "secret",
    [
        "0x1234567",
        "0b1010101",
        "07654321",
        "1_000_000",
        "12345.678",
        "1.5e+1000",
        "12e45678",
        "12:30:45",
        "2024-01-01",
        "+1234567",
        "-1234567",
    ],
)
def test_secrets_that_yaml_turns_into_something_else_need_quotes(secret):
    """RocketMQ takes 07654321 for 2054353, and its users wonder about the signature."""
    with pytest.raises(ConfigError, match=r"line 3: secretKey of RocketMQ is a number, a date, .*put it in quotes"):
        read(one(secretKey=secret), NAME)
    assert read(one(secretKey=f"'{secret}'"), NAME).accounts[0].secret_key == Secret(secret)


@each_parser
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n", "anchors"),
        (b"[" * 1_000_000, "nest"),
        (b"{a: " * 400_000, "nested deeper"),
        (b"- " * 1_000_000, "nested deeper"),
        (b"accounts: [" + b"x," * (tree.NODES_MAX + 1), f"more than {tree.NODES_MAX} values"),
        (b"x" * (tree.TEXT_CHARS_MAX + 1), "the limit is"),
        (b"!!python/object/apply:os.system ['true']", "tags"),
    ],
    ids=["aliases", "lists", "maps", "dashes", "values", "text", "objects"],
)
def test_bombs_are_refused_before_they_take_memory(data, reason):
    """Of aliases, of nesting, of many values, of sheer size; nothing is made of what YAML says it is."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConfigError, match=reason):
        read(data, NAME)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024  # KiB


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
@example(b"%YAML 9.9\n---\na: b")
@example(b"accounts: !")
def test_any_bytes_are_a_file_or_an_error(data):
    """Nothing else comes out of the reader."""
    try:
        assert isinstance(read(data, NAME), AclFile)
    except ConfigError as error:
        assert str(error).startswith(NAME)


@given(st.data())
def test_a_damaged_file_is_a_file_or_an_error_without_its_secrets(data):
    """One byte of RocketMQ's own is changed, lost or doubled."""
    secret = b"GEHEIM78"
    text = ROCKETMQS.replace(b"12345678", secret)
    at = data.draw(st.integers(0, len(text) - 1))
    broken = text[:at] + data.draw(st.binary(max_size=2)) + text[at + data.draw(st.integers(0, 1)) :]
    try:
        read(broken, NAME)
    except ConfigError as error:
        assert "EHEIM7" not in str(error)


def test_credentials_are_read_from_rocketmqs_tools_yml():
    """Two lines, and a token for temporary accounts."""
    found = read_credentials(b"accessKey: account-one\nsecretKey: 12345678\n", "tools.yml")
    assert (found.access_key, found.secret_key.reveal(), bool(found.security_token)) == (
        "account-one",
        "12345678",
        False,
    )
    found = read_credentials(b"accessKey: account-one\nsecretKey: 12345678\nsecurityToken: abc\n", "tools.yml")
    assert found.security_token.reveal() == "abc"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("accessKey: account-one\n", "secretKey of the file is missing"),
        ("accessKey: account-one\nsecretKey: 1234567s\nadmin: true\n", "line 3: the file has an unknown key admin"),
        ("accessKey: account-one\nsecretKey: short1\n", "line 2: secretKey of the file has 6 characters"),
        ("- accessKey: account-one\n", "line 1: the file must be a map"),
        (
            "accessKey: account-one\nsecretKey: 1234567s\nsecurityToken: [1234567s]\n",
            "line 3: securityToken must be a text",
        ),
    ],
)
def test_what_is_wrong_with_credentials_is_told_without_them(text, why):
    """With the file's name."""
    with pytest.raises(ConfigError, match=re.escape(why)) as caught:
        read_credentials(text.encode(), "tools.yml")
    assert "tools.yml" in str(caught.value)
    assert "1234567s" not in str(caught.value)
