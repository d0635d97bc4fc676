"""Three words let one device in, once: whoever guesses has three tries at an address, whoever listens has nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdl.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from mdl.transport.trust.invitation import (
    GOOD_FOR_S,
    MAX_FRAME_BYTES,
    MAX_TEXT_BYTES,
    REFUSED,
    TRIES,
    TRIES_OF_ONE,
    Invitation,
    Joining,
)
from mdl.transport.trust.keys import COUNT
from mdl.transport.trust.keys import WORDS as LISTED

WORDS, OTHERS = "maple otter violin", "maple otter vowel"
CODE = "home:k7q2-9xvd-k7q2-9xvd-k7q2"
HOST = "10.0.0.1"


def _seeded(seed: int) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def _invite(seed: int = 1, text: str = CODE) -> Invitation:
    return Invitation(WORDS, text, 0.0, _seeded(seed))


def _meet(
    invitation: Invitation, words: str, now: float = 1.0, seed: int = 2, host: str = HOST
) -> tuple[Joining, list[bytes]]:
    """All frames, in the order in which they were sent."""
    joining, inviting = Joining(words, _seeded(seed)), invitation.begin(host)
    frames = [joining.begin()]
    while frames[-1]:
        frames.append(inviting.handle(frames[-1], now))
        frames.append(joining.handle(frames[-1]))
    assert inviting.is_over
    return joining, frames


def test_who_knows_the_words_has_the_text_and_nobody_has_it_again() -> None:
    invitation = _invite()
    joining, _ = _meet(invitation, WORDS)
    assert joining.text == CODE
    assert invitation.why_over(1.0) == "it was used"
    with pytest.raises(RemoteProtocolError, match="over: it was used"):
        _meet(invitation, WORDS)


def test_whoever_guesses_uses_up_its_own_tries_and_not_those_of_the_device_that_was_invited() -> None:
    invitation = _invite()
    for left in range(TRIES_OF_ONE - 1, -1, -1):
        with pytest.raises(ConfigError, match="not the words"):
            _meet(invitation, OTHERS, seed=10 + left)
        assert invitation.left_to(HOST) == left
    for words in (WORDS, OTHERS):
        with pytest.raises(RemoteProtocolError, match=f"3 times somebody at {HOST}"):
            _meet(invitation, words)
    assert not invitation.was_taken
    assert _meet(invitation, WORDS, host="10.0.0.2")[0].text == CODE


def test_all_together_have_so_many_guesses_that_one_in_millions_is_right() -> None:
    invitation = _invite()
    for number in range(TRIES):
        with pytest.raises(ConfigError, match="not the words"):
            _meet(invitation, OTHERS, seed=number, host=f"10.0.1.{number // TRIES_OF_ONE}")
    assert "did not know the words" in invitation.why_over(1.0)
    with pytest.raises(RemoteProtocolError, match=f"over: {TRIES} times"):
        _meet(invitation, WORDS)
    assert len(LISTED) ** COUNT / TRIES > 4_000_000


def test_exchanges_side_by_side_have_no_more_guesses_than_one_after_the_other() -> None:
    invitation = _invite()
    proofs = []
    for number in range(2 * TRIES_OF_ONE):
        joining, inviting = Joining(OTHERS, _seeded(number)), invitation.begin(HOST)
        proofs.append((inviting, joining.handle(inviting.handle(joining.begin(), 1.0))))
    answers = []
    for inviting, proof in proofs:
        try:
            answers.append(inviting.handle(proof, 1.0))
        except RemoteProtocolError:
            answers.append(b"unheard")
    assert answers == [REFUSED] * TRIES_OF_ONE + [b"unheard"] * TRIES_OF_ONE


def test_who_hangs_up_before_its_proof_has_learned_nothing_and_used_no_try() -> None:
    invitation = _invite()
    for seed in range(2 * TRIES):
        invitation.begin(HOST).handle(Joining(OTHERS, _seeded(seed)).begin(), 1.0)
    assert (invitation.tries_left, invitation.left_to(HOST)) == (TRIES, TRIES_OF_ONE)
    assert _meet(invitation, WORDS)[0].text == CODE


def test_noise_is_no_try() -> None:
    invitation = _invite()
    for noise in (b"", b"GET / HTTP/1.1\r\n", bytes(33), b"A" + bytes(32), b"B" + bytes(32), b"A" + b"\xff" * 32):
        inviting = invitation.begin(HOST)
        with pytest.raises(RemoteProtocolError):
            inviting.handle(noise, 1.0)
        assert inviting.is_over
        with pytest.raises(RemoteProtocolError, match="more was said"):
            inviting.handle(noise, 1.0)
    assert invitation.tries_left == TRIES


def test_after_five_minutes_it_is_over_also_in_the_middle() -> None:
    invitation = _invite()
    assert not invitation.why_over(GOOD_FOR_S - 0.1)
    with pytest.raises(RemoteProtocolError, match="5 minutes are over"):
        _meet(invitation, WORDS, now=GOOD_FOR_S)


def test_what_was_recorded_cannot_be_played_again() -> None:
    _, frames = _meet(_invite(1), WORDS)
    again = _invite(3)
    inviting = again.begin(HOST)
    inviting.handle(frames[0], 1.0)
    assert inviting.handle(frames[2], 1.0) == REFUSED
    assert again.left_to(HOST) == TRIES_OF_ONE - 1
    joining = Joining(WORDS, _seeded(4))
    joining.begin()
    joining.handle(frames[1])
    with pytest.raises(RemoteProtocolError, match="does not know the words"):
        joining.handle(frames[3])
    assert not joining.text


def test_a_listener_sees_neither_words_nor_text() -> None:
    _, frames = _meet(_invite(), WORDS)
    heard = b"".join(frames)
    assert not any(part.encode() in heard for part in (CODE, "home", "k7q2", *WORDS.split()))
    # The same words and text give other bytes each time: nothing to compare with.
    _, others = _meet(_invite(5), WORDS, seed=6)
    assert all(frame != other for frame, other in zip(frames[:4], others[:4], strict=True))


def test_whoever_answers_without_the_words_gets_no_further_than_one_guess() -> None:
    impostor = Invitation(OTHERS, "evil:code", 0.0, _seeded(7))
    with pytest.raises(ConfigError, match="not the words"):
        _meet(impostor, WORDS)
    joining, inviting = Joining(WORDS, _seeded(8)), impostor.begin(HOST)
    joining.handle(inviting.handle(joining.begin(), 1.0))
    with pytest.raises(RemoteProtocolError, match="does not know the words"):
        joining.handle(bytes(32) + b"evil:code")
    assert not joining.text


def test_a_message_that_comes_back_is_no_answer() -> None:
    joining = Joining(WORDS, _seeded(8))
    mine = joining.begin()
    with pytest.raises(RemoteProtocolError, match="no SPAKE2 message"):
        joining.handle(mine)
    reflected = Joining(WORDS, _seeded(8))
    with pytest.raises(RemoteProtocolError, match="no SPAKE2 message"):
        reflected.handle(b"B" + reflected.begin()[1:])


@pytest.mark.parametrize("place", [0, 31, 32, 40, -1])
def test_one_changed_bit_is_seen(place: int) -> None:
    invitation, joining = _invite(), Joining(WORDS, _seeded(9))
    inviting = invitation.begin(HOST)
    sealed = bytearray(inviting.handle(joining.handle(inviting.handle(joining.begin(), 1.0)), 1.0))
    sealed[place] ^= 1
    with pytest.raises(RemoteProtocolError):
        joining.handle(bytes(sealed))
    assert not joining.text


def test_the_longest_text_fits_into_a_frame_and_a_longer_one_is_a_bug() -> None:
    joining, frames = _meet(_invite(text="x" * MAX_TEXT_BYTES), WORDS)
    assert len(joining.text) == MAX_TEXT_BYTES
    assert max(map(len, frames)) == MAX_FRAME_BYTES
    with pytest.raises(LocalProtocolError, match="at most"):
        _invite(text="x" * (MAX_TEXT_BYTES + 1))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=80) | st.just(b"A" + bytes(31) + b"\1"), max_size=4), st.integers(0, 2))
def test_whatever_is_said_neither_end_breaks_or_gives_anything_away(said: list[bytes], honest: int) -> None:
    invitation, joining = _invite(), Joining(WORDS, _seeded(2))
    inviting, hello = invitation.begin(HOST), joining.begin()
    for frame in ([hello] if honest else []) + said:
        try:
            assert CODE.encode() not in inviting.handle(frame, 1.0)
        except RemoteProtocolError:
            break
    for frame in said:
        try:
            joining.handle(frame)
        except (RemoteProtocolError, ConfigError):
            break
    assert not invitation.was_taken
    assert not joining.text
