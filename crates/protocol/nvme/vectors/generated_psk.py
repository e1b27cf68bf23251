#!/usr/bin/env python3
"""The vectors of src/auth/tests/concatenation.rs, by another way: Python's integers, hashlib and hmac.

A whole DH-HMAC-CHAP exchange with secure channel concatenation (NVMe Base 2.1 §8.3.4.5), from the exponents and
challenges that the test draws, to the TLS PSK (NVMe/TCP Transport 1.1 §3.6.1.3). Prints R1, R2, the identity and
the TLS PSK of each hash.
"""
import base64
import hashlib
import hmac
from fractions import Fraction

HOST = b"nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001"
SUBSYSTEM = b"nqn.2026-11.io.blockwire:disks"
SECRET = base64.b64decode("ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n")[:-4]
T_ID, SC_C = 0x1234, 2


def floor_of_e_times_two_to(bits):
    total, term, n = Fraction(0), Fraction(1), 0
    while term * 2**bits > Fraction(1, 2**64):
        total += term
        n += 1
        term /= n
    return int(total * 2**bits)


# RFC 7919 appendix A.1.
P = 2**2048 - 2**1984 + (floor_of_e_times_two_to(1918) + 560316) * 2**64 - 1


def counter(start, length):
    return bytes((start + n) % 256 for n in range(length))


def mac(name, key, *parts):
    return hmac.new(key, b"".join(parts), name).digest()


def expand_label(name, prk, label, context, length):
    label = b"tls13 " + label
    info = length.to_bytes(2, "big") + bytes([len(label)]) + label + bytes([len(context)]) + context
    out, block, n = b"", b"", 0
    while len(out) < length:
        n += 1
        block = mac(name, prk, block, info, bytes([n]))
        out += block
    return out[:length]


def run(name, hash_id):
    size = hashlib.new(name).digest_size
    # What is drawn: 4 bytes for S1 - 1, C1, 32 bytes of a decoy, x; 4 bytes for S2, y, C2.
    s1 = int.from_bytes(counter(0, 4), "little") + 1
    c1 = counter(4, size)
    x = int.from_bytes(counter(4 + size + 32, 64), "big")
    s2 = int.from_bytes(counter(0, 4), "little")
    y = int.from_bytes(counter(4, 64), "big")
    c2 = counter(68, 64)[:size]
    shared = pow(pow(2, x, P), y, P).to_bytes(256, "big")
    ks = hashlib.new(name, shared).digest()

    def response(owner, challenge, sequence, role, own, other):
        key = mac("sha256", SECRET, owner, b"NVMe-over-Fabrics")
        augmented = mac(name, ks, challenge)
        return mac(name, key, augmented, sequence.to_bytes(4, "little"), T_ID.to_bytes(2, "little"),
                   bytes([SC_C]), role, own, b"\0", other)

    r1 = response(HOST, c1, s1, b"HostHost", HOST, SUBSYSTEM)
    r2 = response(SUBSYSTEM, c2, s2, b"Controller", SUBSYSTEM, HOST)
    psk = mac(name, ks, c1, c2)
    digest = base64.b64encode(mac(name, psk, HOST, b" ", SUBSYSTEM, b" ", b"NVMe-over-Fabrics"))
    identity = b"NVMe1G%02d %s %s %s" % (hash_id, HOST, SUBSYSTEM, digest)
    prk = mac(name, bytes(size), psk)
    tls = expand_label(name, prk, b"nvme-tls-psk", b"%02d %s" % (hash_id, digest), size)
    print(name, r1.hex(), r2.hex(), identity.decode(), tls.hex(), sep="\n")


run("sha256", 1)
run("sha384", 2)
