"""Bodies that hold anything, and what decoders make of them in Spark."""

from __future__ import annotations

import random

from metaq.spark import decode


def frame_of(spark, bodies):
    """A frame of `i int, body binary`."""
    rows = [(i, None if body is None else bytearray(body)) for i, body in enumerate(bodies)]
    return spark.createDataFrame(rows, "i int, body binary")


def decoded(spark, bodies, struct, **options):
    """What each body became: a dict of its fields, or the bytes that went to `_corrupt`; in the order of `bodies`."""
    rows = decode.expand(frame_of(spark, bodies), struct, **options).collect()
    results = []
    for row in sorted(rows, key=lambda row: row.i):
        values = row.asDict(recursive=True)
        corrupt = values.pop(decode.CORRUPT)
        fields = {name: value for name, value in values.items() if name not in {"i", "body"}}
        if corrupt is not None:
            assert set(fields.values()) == {None}
        results.append(fields if corrupt is None else bytes(corrupt))
    assert len(results) == len(bodies)
    return results


def anything(seed, whole, count):
    """`count` bodies: random bytes, and whole ones with bytes changed, cut off, put in, or something behind them."""
    chance = random.Random(seed)
    bodies = []
    for _ in range(count):
        body = bytearray(chance.choice(whole))
        match chance.randrange(6):
            case 0:
                body = bytearray(chance.randbytes(chance.randrange(40)))
            case 1 if body:
                body[chance.randrange(len(body))] = chance.randrange(256)
            case 2:
                del body[chance.randrange(len(body) + 1) :]
            case 3:
                body.insert(chance.randrange(len(body) + 1), chance.choice(b'{}[]",:\\ \x00\x80\xff019eN'))
            case 4:
                body += chance.choice([b" ", b"\n", b"}", b"]", b",", b"{}", b"\x00", b',{"a":1}', b"x"])
        bodies.append(bytes(body))
    return bodies
