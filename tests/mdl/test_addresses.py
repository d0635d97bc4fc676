"""What a device says of where it listens can be dialled, or its message is refused."""

import msgspec
import pytest

from mdl.protocol.statements import Enrolled, Proof

ENROLLED = Enrolled(bytes(32), "ann", bytes(32))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "1.2", "ab", ":::"])
def test_a_proof_with_a_host_where_nobody_can_be_reached_is_refused(host):
    proof = Proof(ENROLLED, 9, ("127.0.0.1", "10.0.0.1"), 1)
    packed = msgspec.msgpack.encode(proof)
    assert msgspec.msgpack.decode(packed, type=Proof) == proof
    asked = {**msgspec.msgpack.decode(packed), "hosts": ["127.0.0.1", host]}
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(asked), type=Proof)
