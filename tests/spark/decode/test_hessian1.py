"""Hessian 1 strings as MetaQ 1.x's log4j appender sends them. The vectors are from metamorphosis-commons 1.4.6.2."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metaq.spark import decode
from metaq.spark.decode.hessian1 import string_of
from tests.spark.decode.bodies import anything, decoded

CHUNK = 0x8000
VECTORS = {
    "63000153000568656c6c6f7a": "hello",
    "6300015300007a": "",
    "630001530005c3a9e282aceda0bdedb880007a": "é€😀\0",
    "6300014e7a": None,
}
OTHERS = [
    "630001490000002a7a",  # 42
    "6300014c00000000000000077a",  # 7L
    "630001443ff80000000000007a",  # 1.5
    "630001547a",  # true
    "63000164000000000000 00007a".replace(" ", ""),  # a date
    "63000174000000".ljust(20, "0") + "7a",
    "63000156 7400045b696e74 6c00000002 4900000001 4900000002 7a 7a".replace(" ", ""),
    "630001530001eda0bd7a",  # half a surrogate pair
]


def java_chars(text):
    """The bytes of a string's UTF-16 units, each by itself, and how many there are."""
    units = text.encode("utf-16-be", "surrogatepass")
    chars = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return b"".join(chr(char).encode("utf-8", "surrogatepass") for char in chars), len(chars)


def as_java(text):
    """What `Hessian1Serializer.encodeObject` makes of a string."""
    units = text.encode("utf-16-be", "surrogatepass")
    parts = []
    while len(units) > 2 * CHUNK:
        size = CHUNK
        if 0xD800 <= int.from_bytes(units[2 * size - 2 : 2 * size], "big") <= 0xDBFF:
            size -= 1
        data, count = java_chars(units[: 2 * size].decode("utf-16-be", "surrogatepass"))
        parts.append(b"s" + count.to_bytes(2, "big") + data)
        units = units[2 * size :]
    data, count = java_chars(units.decode("utf-16-be", "surrogatepass"))
    return b"c\0\1" + b"".join(parts) + b"S" + count.to_bytes(2, "big") + data + b"z"


LONG = [
    "x" * CHUNK,
    "x" * (CHUNK + 1),
    "x" * (CHUNK - 1) + "😀tail",
    "é" * 100_000,
    "€😀" * 50_000,
    "".join(chr(97 + i % 26) for i in range(100_000)),
]


@pytest.mark.parametrize(("data", "text"), VECTORS.items())
def test_vectors_of_the_original_are_read(data, text):
    """A word, nothing, all lengths of characters, and null."""
    assert string_of(bytes.fromhex(data)) == text
    if text is not None:
        assert as_java(text).hex() == data


@pytest.mark.parametrize("data", OTHERS)
def test_what_is_no_string_is_refused(data):
    """Numbers, dates, arrays; and half a character."""
    with pytest.raises(ValueError):
        string_of(bytes.fromhex(data))


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example(LONG[0])
@example(LONG[1])
@example(LONG[2])
@example(LONG[3])
@example(LONG[4])
def test_every_string_comes_back(text):
    """Also in chunks, which never tear a pair; a byte less or more, and it is no string."""
    body = as_java(text)
    assert string_of(body) == text
    for damaged in (body[:-1], body[:-2] + b"z", body[1:], body[:-1] + b"xz"):
        if damaged != body:
            with pytest.raises(ValueError):
                string_of(damaged)


@given(st.binary(max_size=40), st.sampled_from([b"", b"c\0\1", b"c\0\1S", b"c\0\1s\0\1a", b"c\0\1s\xff\xff"]))
def test_any_bytes_are_a_string_or_a_value_error(data, head):
    """And nothing else; a string that is found is what its bytes say."""
    body = head + data + b"z"
    try:
        text = string_of(body)
    except ValueError:
        return
    assert text is None or len(text.encode("utf-16-le")) <= 2 * len(body)


def test_a_count_that_claims_more_than_there_is_costs_nothing():
    """4 MiB of chunks that claim 65 535 characters and hold none."""
    body = b"c\0\1" + b"s\xff\xff" * (1 << 20) + b"z"
    with pytest.raises(ValueError):
        string_of(body)


@pytest.mark.spark
def test_hessian_strings_in_spark(spark):
    """Among 1 000 damaged ones; null is null and not corrupt."""
    whole = [bytes.fromhex(data) for data in VECTORS]
    bodies = [*whole, *map(bytes.fromhex, OTHERS), *map(as_java, LONG), None, *anything(5, whole, 1000)]

    def wanted(body):
        try:
            return {"text": None if body is None else string_of(body)}
        except ValueError:
            return body

    results = decoded(spark, bodies, decode.hessian())
    assert results == list(map(wanted, bodies))
    assert results[: len(whole)] == [{"text": text} for text in VECTORS.values()]


PROGRAM = """
import com.taobao.metamorphosis.utils.codec.impl.Hessian1Serializer;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
public class Encode {
    public static void main(String[] names) throws Exception {
        for (String name : names) {
            String text = new String(Files.readAllBytes(Paths.get(name)), StandardCharsets.UTF_8);
            Files.write(Paths.get(name + ".hessian"), new Hessian1Serializer().encodeObject(text));
        }
    }
}
"""


@pytest.mark.interop
@pytest.mark.all
def test_what_the_original_serializer_writes_is_what_is_read(tmp_path):
    """`Hessian1Serializer`, which the appender calls: short strings and long ones, byte by byte as the vectors' encoder."""
    from tests.interop import maven, metaq1

    (tmp_path / "Encode.java").write_text(PROGRAM)
    jars = f"{maven.jars(*metaq1.CLIENT)}/*"
    compiler = [maven.java(compiler=True), "-cp", jars, "-d", str(tmp_path), str(tmp_path / "Encode.java")]
    subprocess.run(compiler, check=True, timeout=600)
    texts = [text for text in VECTORS.values() if text] + LONG
    for number, text in enumerate(texts):
        (tmp_path / f"{number}").write_text(text, encoding="utf-8", newline="")
    command = metaq1.java_command(tmp_path, metaq1.CLIENT)
    subprocess.run([*command, "Encode", *map(str, range(len(texts)))], cwd=tmp_path, check=True, timeout=600)
    for number, text in enumerate(texts):
        body = (tmp_path / f"{number}.hessian").read_bytes()
        assert body == as_java(text)
        assert string_of(body) == text
