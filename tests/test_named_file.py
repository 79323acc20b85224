"""Files that a user names: the limit, and what is said of those that cannot be read."""

from __future__ import annotations

import pytest

from metaq.errors import ConfigError
from metaq.named_file import read_named


def test_a_file_up_to_the_limit_is_read_whole(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"12345678")
    assert read_named(path, 8) == b"12345678"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("large", "tlsCrl {} is larger than 8 bytes"),
        ("none", "tlsCrl {} cannot be read: No such file or directory"),
        ("", "tlsCrl {} cannot be read: Is a directory"),
        ("with\0nul", "tlsCrl {} cannot be read: embedded null byte"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, said):
    (tmp_path / "large").write_bytes(b"123456789")
    path = f"{tmp_path}/{name}" if name else str(tmp_path)
    with pytest.raises(ConfigError) as raised:
        read_named(path, 8, "tlsCrl")
    assert str(raised.value) == said.format(path)
