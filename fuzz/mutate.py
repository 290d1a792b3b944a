"""Bytes made from valid ones: flipped, cut, doubled, spliced, and with the numbers put in that break readers."""

import random

NASTY = (
    b"\x00", b"\x7f", b"\x80", b"\xff", b"\xc0", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
    b"\xdb\x7f\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\x00" * 7,
    b"\xcb\x7f\xf8" + b"\x00" * 6, b"\xcb\x7f\xf0" + b"\x00" * 6, b"\xd6\xff\x00\x00\x00\x00", b"\xed\xa0\x80",
    b"nan", b"1e999", b"-0", b"\n", b",", b'"', b"\xff\xff\xff\x7f", b"\x80\x80\x80\x80",
)  # fmt: skip
LONGEST = 70_000
"""Bytes of a mutated input; doubling must not run away."""


def mutated(data: bytes, chance: random.Random, other: bytes = b"") -> bytes:
    """Return `data` after one to four mutations; some of them take a piece of `other`."""
    broken = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(broken) + 1)
        match chance.randrange(8):
            case 0 if broken:
                broken[place % len(broken)] ^= 1 << chance.randrange(8)
            case 1 if broken:
                broken[place % len(broken)] = chance.randrange(256)
            case 2:
                del broken[place : place + chance.randint(1, 9)]
            case 3:
                broken[place:place] = chance.randbytes(chance.randint(1, 9))
            case 4:
                nasty = chance.choice(NASTY)
                broken[place : place + chance.choice([0, len(nasty)])] = nasty
            case 5:
                begin = chance.randrange(len(broken) + 1)
                broken[place:place] = broken[begin : begin + chance.randint(1, 64)]
            case 6 if other:
                begin = chance.randrange(len(other))
                broken[place : place + chance.randint(0, 32)] = other[begin : begin + chance.randint(1, 32)]
            case _:
                del broken[place:]
    return bytes(broken[:LONGEST])
