"""Java properties are read as Java does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metaq.app.config_files.properties import read_properties


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
    assert read_properties(text) == {key: value.strip() for key, value in pairs.items()}


def test_properties_survive_odd_lines():
    r"""An empty key, a key alone, `\u` escapes and a file that ends in a continuation."""
    assert read_properties("=x\nalone\nu=\\u00e4\\q\nlast=a\\") == {"alone": "", "u": "äq", "last": "a"}
