"""What comes around a command's output, in whatever pieces it comes."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gpurun.shell.envelope import Envelope

NOISE = st.binary(max_size=200)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def like_marks(envelope: Envelope) -> st.SearchStrategy[bytes]:
    """Output that looks like the marks, without being one."""
    nonce = envelope.nonce.encode()
    words = [b"gpurun-", b"begin-", b"end-", nonce[:-1], b"\n", b" ", b"g", b"\0", b"0"]
    return st.lists(st.sampled_from(words), max_size=20).map(b"".join)


@given(st.data(), NOISE, st.binary(max_size=300), NOISE, st.lists(st.integers(0, 2000)))
def test_exactly_the_commands_own_output_comes_out(
    data: st.DataObject, before: bytes, middle: bytes, after: bytes, cuts: list[int]
) -> None:
    envelope = Envelope("true", "/", with_stdin=False)
    output = data.draw(like_marks(envelope)) + middle + data.draw(like_marks(envelope))
    begin = f"\ngpurun-begin-{envelope.nonce} 123\n".encode()
    end = f"gpurun-end-{envelope.nonce} 7\n".encode()
    sent = before + begin + output + end + after
    heard = b"".join(envelope.opened(piece) for piece in pieces(sent, cuts))
    assert heard == output
    assert (envelope.pid, envelope.code) == (123, 7)


@given(st.binary(max_size=300), st.lists(st.integers(0, 2000)))
def test_an_answer_that_breaks_off_is_heard_to_its_last_byte(
    output: bytes, cuts: list[int]
) -> None:
    envelope = Envelope("true", "/", with_stdin=False)
    begun = f"gpurun-end-{envelope.nonce}".encode()  # only the beginning of the mark
    sent = f"\ngpurun-begin-{envelope.nonce} 123\n".encode() + output + begun
    heard = b"".join(envelope.opened(piece) for piece in pieces(sent, cuts))
    assert heard + envelope.remainder() == output + begun
    assert not envelope.ended


@given(NOISE, st.lists(st.integers(0, 2000)))
def test_a_login_that_never_begins_is_noise(noise: bytes, cuts: list[int]) -> None:
    envelope = Envelope("true", "/", with_stdin=False)
    assert all(envelope.opened(piece) == b"" for piece in pieces(noise, cuts))
    assert (envelope.pid, envelope.ended, envelope.remainder()) == (None, False, b"")
    assert envelope.noise == noise.decode(errors="replace").strip()


def test_the_command_line_does_not_hold_what_is_looked_for() -> None:
    """A login shell may print what it is asked to run (`set -x`)."""
    envelope = Envelope("true", "/", with_stdin=False)
    assert envelope.opened(envelope.sent + b"\n") == b""
    assert envelope.pid is None
