"""Messages survive nothing that would change them, and nothing in them is trusted."""

import math
import random
import struct
import tracemalloc
import zlib
from typing import NamedTuple

import jax
import numpy as np
import pytest

from covey.core import outline
from covey.core.protocol import (
    MOST_BYTES,
    NEVER,
    Envelope,
    Kind,
    Reason,
    Refusal,
    Stamp,
    answer_size,
    join,
    open_envelope,
    pack_refusal,
    pack_text,
    request_size,
    seal,
    split,
    token,
    unpack_refusal,
    unpack_text,
)
from covey.core.wire import WireError, pack, unpack

REQUEST = Envelope(
    Kind.ROUND, "heart", "ab" * 32, 2**61, 41, "server", "Zürich", Stamp(7, 3), (Stamp(6, 1),)
)
BODY = bytes(range(200))


class Point(NamedTuple):
    at: np.ndarray
    more: dict


def test_what_is_sealed_opens():
    for envelope in (
        REQUEST,
        REQUEST._replace(kind=Kind.HELLO, accepted=NEVER, kept=()),
        REQUEST._replace(kept=(Stamp(6, 1), Stamp(0, 0))),
        REQUEST.answer(seal(REQUEST)),
        REQUEST.answer(seal(REQUEST), Kind.REFUSAL),
    ):
        for body in (b"", BODY):
            message = seal(envelope, body)
            assert open_envelope(message) == (envelope, body)
            short = answer_size(len(body)) if envelope.is_answer else request_size(len(body))
            assert len(message) == short


def test_an_answer_names_its_message():
    message = seal(REQUEST, BODY)
    assert REQUEST.answer(message).answers == token(message)
    others = [seal(REQUEST, BODY[1:]), seal(REQUEST._replace(receiver="Bern"), BODY)]
    assert token(message) not in map(token, others)


@pytest.mark.parametrize(
    "change",
    [
        {"study": ""},
        {"sender": "a\nb"},
        {"receiver": "x" * 201},
        {"epoch": -1},
        {"epoch": 2**62},
        {"round": 2**31 - 1},
        {"accepted": Stamp(-1, 3)},
        {"accepted": Stamp(3, -1)},
        {"kept": (NEVER,) * 3},
        {"digest": "no hexadecimal"},
        {"digest": "abcd"},
        {"epoch": 2**70},
        {"answers": b"12345678"},
    ],
    ids=str,
)
def test_an_envelope_that_cannot_be_opened_is_not_sealed(change):
    with pytest.raises(ValueError, match=r"name|impossible|stamps|digest|only an answer"):
        seal(REQUEST._replace(**change), BODY)


def test_every_bit_is_inside_of_the_checksum():
    for message in (seal(REQUEST, BODY), seal(REQUEST.answer(BODY), BODY)):
        for at in range(len(message)):
            for bit in range(8):
                broken = bytearray(message)
                broken[at] ^= 1 << bit
                with pytest.raises(WireError):
                    open_envelope(bytes(broken))
            with pytest.raises(WireError):
                open_envelope(message[:at])


def test_a_message_over_the_cap_is_not_looked_at():
    with pytest.raises(WireError, match="over the cap of 100"):
        open_envelope(seal(REQUEST, BODY), most=100)


def test_texts():
    assert unpack_text(pack_text({"a": [1, None, "ü"]})) == {"a": [1, None, "ü"]}
    for bad in (
        b"{",
        b"[" * 60_000,
        b"NaN",
        b"1e999",
        b'"\\ud800"',
        b"\xff",
        b"1" * 6000,
        b" " * 70_000,
    ):
        with pytest.raises(WireError):
            unpack_text(bad)
    with pytest.raises(ValueError, match="over the cap"):
        pack_text("x" * 70_000)


def test_refusals():
    refusal = Refusal(Reason.SUPERSEDED, "why", 12)
    assert unpack_refusal(pack_refusal(refusal)) == refusal
    assert len(unpack_refusal(pack_refusal(refusal._replace(text="x" * 10**5))).text) == 2000
    for bad in (
        [],
        {},
        {"reason": "no", "text": "", "epoch": 0},
        {"reason": "failed", "text": 3, "epoch": 0},
        {"reason": "failed", "text": "", "epoch": True},
        {"reason": ["failed"], "text": "", "epoch": 2**62},
    ):
        with pytest.raises(WireError):
            unpack_refusal(pack_text(bad))


def test_parts():
    assert split(join([b"a", b"", b"bc"]), 3) == [b"a", b"", b"bc"]
    for bad in (b"", b"abc", join([b"a"]), join([b"a", b"b"]) + b"c"):
        with pytest.raises(WireError):
            split(bad, 2)


def test_trees_that_say_what_they_are():
    tree = (
        Point(np.arange(6.0).reshape(2, 3), {"b": None, "a": [np.int32(3)]}),
        (),
        np.bool_(True),
    )
    back = outline.unpack(outline.pack(tree))
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    jax.tree.map(np.testing.assert_array_equal, back, tree)


def test_nodes_that_both_sides_know():
    import equinox

    network = equinox.nn.MLP(2, 1, 3, 1, key=jax.random.key(0))
    shapes, _ = equinox.partition(network, equinox.is_array)
    known = outline.custom_nodes({"x": (shapes,)})
    body = outline.pack(Point(np.zeros(1), {"net": shapes}), known)
    back = outline.unpack(body, known)
    jax.tree.map(np.testing.assert_array_equal, back.more["net"], shapes)
    with pytest.raises(TypeError, match="MLP cannot be sent"):
        outline.pack(shapes)
    with pytest.raises(WireError, match="not known here"):
        outline.unpack(body)


@pytest.mark.parametrize(
    "text",
    [
        ["array", "float32", [2**40, 2**40]],
        ["array", "float32", [0, 2**60]],
        ["array", "float32", [0, 2**40]],
        ["array", "float32", [2**40, 0]],
        ["array", "float32", [0, 2**20, 2**20]],
        ["array", "float32", [2**29, 0, 0]],
        ["array", "float32", [-1]],
        ["array", "float32", [True]],
        ["array", "object", [1]],
        ["array", "float32"],
        ["named", "os:system", []],
        ["named", "no.such.module:Point", []],
        ["named", "builtins:tuple", []],
        ["named", "covey:fedavg", []],  # which would be imported when it is asked for
        ["dict", ["b", "a"], [None, None]],
        ["dict", [1], [None]],
        ["known", 0, []],
        ["known", -1, []],
        ["known", True, []],
        ["execute", []],
        [],
        "array",
        7,
    ],
    ids=str,
)
def test_outlines_that_are_none(text):
    arrays = pack([np.zeros(1, np.float32)] if "array" in str(text) else [])
    with pytest.raises(WireError):
        outline.unpack(join([pack_text(text), arrays]))


def test_the_outline_of_an_array_without_values_is_bounded():
    source = random.Random(2)
    read = 0
    for _ in range(500):
        shape = [source.choice((0, 1, 3, 2**14, 2**28, 2**29, 2**40)) for _ in range(4)]
        shape[source.randrange(4)] = 0
        # NumPy cannot make some of these, and so their identity is written by hand
        identity = struct.pack("<I", zlib.crc32(f"covey 2\nint8{shape}".encode()))
        arrays = identity + struct.pack("<I", zlib.crc32(identity))
        body = join([pack_text(["array", "int8", shape]), arrays])
        if math.prod(n or 1 for n in shape) > MOST_BYTES:
            with pytest.raises(WireError, match="an array cannot have the shape"):
                outline.unpack(body)
        else:
            read += 1
            assert outline.unpack(body).shape == tuple(shape)
    assert 0 < read < 500


def test_a_deep_outline_is_refused():
    deep = None
    for _ in range(200):
        deep = ["list", [deep]]
    with pytest.raises(WireError):
        outline.unpack(join([pack_text(deep), pack([])]))


LIKE = {"a": np.zeros((3, 2), np.float32), "b": np.zeros((), np.bool_), "c": np.zeros(5, np.int8)}
CAP = 4096


def originals() -> list[bytes]:
    tree = Point(np.arange(4.0), {"b": [np.float32(1)]})
    bodies = [pack(LIKE), pack(LIKE, checksum=False), pack_text({"name": "x", "index": 3})]
    bodies += [outline.pack(tree), pack_refusal(Refusal(Reason.FAILED, "why")), b""]
    envelopes = [REQUEST, REQUEST.answer(b"x"), REQUEST.answer(b"y", Kind.REFUSAL)]
    return [seal(envelope, body) for envelope in envelopes for body in bodies]


def mutated(source: random.Random, message: bytes) -> bytes:
    """Some bytes changed, cut out, put in, or made larger than the cap."""
    new = bytearray(message)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(new) or 1)
        match source.randrange(6):
            case 0:
                new[at : at + 1] = bytes([source.randrange(256)])
            case 1:
                del new[at : at + source.randint(1, 40)]
            case 2:
                new[at:at] = source.randbytes(source.randint(1, 40))
            case 3:
                new[at : at + 4] = source.choice([b"\xff" * 4, b"\0" * 4, b"\xff\xff\xff\x7f"])
            case 4:
                new[at : at + 8] = new[at // 2 : at // 2 + 8]
            case 5 if source.random() < 0.05:
                new += bytes(CAP)
    return bytes(new)


def checked(message: bytes) -> bytes:
    """With a checksum that is right."""
    return message[:-4] + zlib.crc32(message[:-4]).to_bytes(4, "little")


def read_all(message: bytes) -> int:
    """Open a message and read its body in every way. Returns how many ways there were to fail, and
    raises what is no WireError.
    """
    envelope, body = open_envelope(message, most=CAP)
    assert seal(envelope, body) == message  # there is one encoding of a message
    refused = 0
    for read in (
        lambda: unpack(body, LIKE),
        lambda: unpack(body, LIKE, checksum=False),
        lambda: outline.unpack(body),
        lambda: unpack_text(body),
        lambda: unpack_refusal(body),
        lambda: split(body, 2),
    ):
        try:
            read()
        except WireError:
            refused += 1
    return refused


def assert_refused(count: int) -> None:
    source, sources = random.Random(1), originals()
    opened = 0
    tracemalloc.start()
    try:
        for number in range(count):
            original = source.choice(sources)
            message = mutated(source, original)
            if message == original:
                continue
            if number % 2 and len(message) > 4:
                message = checked(message)
            try:
                refused = read_all(message)
            except WireError:
                continue
            opened += 1  # an envelope as good as any other
            assert number % 2
            assert refused >= 4  # a body is one thing at most, in two parts perhaps
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0 < opened < count / 2
    assert most < 100 * CAP


def test_changed_messages():
    assert_refused(1000)


@pytest.mark.slow
def test_changed_messages_at_length():
    assert_refused(20_000)
