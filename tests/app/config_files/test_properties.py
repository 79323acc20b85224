"""Java properties are read as Java does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.app.config_files.properties import read_properties
from metaq.errors import ConfigError


@given(
    st.dictionaries(
        st.from_regex(r"[a-zA-Z][a-zA-Z0-9.]{0,20}", fullmatch=True), st.text("abc XYZ=:#!\\\t;/äß", max_size=20)
    )
)
def test_properties_round_trip(pairs):
    """Whatever Java's writer would escape comes back as it was, but for blanks at the ends."""

    def escape(text):
        for char in "\\=:#!":
            text = text.replace(char, "\\" + char)
        return text.replace("\t", "\\t")

    text = "\n".join(f"{key}={escape(value.strip())}" for key, value in pairs.items())
    assert read_properties(text, "file") == {key: value.strip() for key, value in pairs.items()}


def test_properties_survive_odd_lines():
    r"""An empty key, a key alone, `\u` escapes and a file that ends in a continuation."""
    assert read_properties("=x\nalone\nu=\\u00e4\\q\nlast=a\\", "file") == {"alone": "", "u": "äq", "last": "a"}


def test_lines_end_where_java_ends_them():
    """Not at the other characters that end a line in Unicode: they belong to the value. Two escapes are one character beyond U+FFFF."""
    text = "a=x\u2028y\x85z\x0bw\rb=1\r\nc=2\nd=\\uD83D\\uDE00"
    assert read_properties(text, "file") == {"a": "x\u2028y\x85z\x0bw", "b": "1", "c": "2", "d": "\U0001f600"}


def test_what_java_does_not_read_is_refused_with_its_line():
    """A path of Windows, say: Java's reader stops there."""
    text = "# a\u2028comment\r\na=1\r\n\r\nstorePathRootDir=c:\\users\r\n"
    with pytest.raises(ConfigError, match=r"broker\.conf, line 4: \\users is no character"):
        read_properties(text, "broker.conf")
