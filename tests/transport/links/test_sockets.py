"""What every socket that dials has set."""

from __future__ import annotations

import zmq

from mdl.transport.discovery.directory import Address
from mdl.transport.links.sockets import CONNECT_MS, RECONNECT_MAX_MS, prepare_dealer


def test_an_attempt_to_connect_that_is_not_answered_is_given_up_within_seconds() -> None:
    """The kernel would wait twice as long each time: a cut that has healed would be found as late again as it was."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        prepare_dealer(dealer, None, Address("127.0.0.1", 1))
        assert dealer.getsockopt(zmq.CONNECT_TIMEOUT) == CONNECT_MS
        assert CONNECT_MS + RECONNECT_MAX_MS <= 6_000
