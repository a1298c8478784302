"""Values of secrets in bytes: found in every form and however they are split, and nothing else is changed."""

import base64
import html
import json
import os
import subprocess
from collections.abc import Callable
from typing import Final
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.masking.current import calling
from sandpod_gateway.masking.forms import forms
from sandpod_gateway.masking.masker import ANCHOR, SHOWN, Masker, StreamMasker

VALUE: Final = 's3cr3t "quoted"/+é\\n&<x>'
SHOWN_AS: Final = b"[secret TOKEN]"
MASKER: Final = Masker([("TOKEN", VALUE)])

FORMS: Final[dict[str, Callable[[str], str]]] = {
    "as it is": str,
    "json": lambda value: json.dumps(value)[1:-1],
    "json in UTF-8": lambda value: json.dumps(value, ensure_ascii=False)[1:-1],
    "repr": lambda value: repr(value)[1:-1],
    "html": html.escape,
    "percent": lambda value: quote(value, safe=""),
    "percent, lower case": lambda value: "".join(
        char if char.isalnum() and char.isascii() else "".join(f"%{byte:02x}" for byte in char.encode())
        for char in value
    ),
    "a path": quote,
    "a form": quote_plus,
    "hex": lambda value: value.encode().hex(),
    "upper hex": lambda value: value.encode().hex().upper(),
    "base64 in lines": lambda value: base64.encodebytes(value.encode() * 4).decode()[:70],
}


@pytest.mark.promise("secret-forms")
@pytest.mark.parametrize("form", FORMS)
def test_value_is_masked_in_each_form(form: str) -> None:
    text = f"before {FORMS[form](VALUE)} after".encode()
    masked = MASKER.mask(text)
    assert SHOWN_AS in masked
    assert masked.startswith(b"before ")
    assert masked.endswith(b" after")


@pytest.mark.promise("secret-forms")
@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_of_what_holds_a_value_shows_nothing_of_it_but_what_its_neighbours_share(
    before: int, after: int, encode: Callable[[bytes], bytes]
) -> None:
    whole = encode(b"u" * before + VALUE.encode() + b"z" * after)
    masked = MASKER.mask(whole)
    assert SHOWN_AS in masked
    assert len(masked) - len(SHOWN_AS) <= 2 * before + 2 * after + 5
    left = base64.urlsafe_b64decode(masked.partition(SHOWN_AS)[0].translate(bytes.maketrans(b"+/", b"-_")) + b"===")
    assert VALUE.encode()[:2] not in left


def test_programs_that_everybody_has_write_it_in_a_form_that_is_masked() -> None:
    value = "".join(chr(33 + i % 90) for i in range(200))
    key = Masker([("KEY", value)])
    for command in ("base64", "base64 -w 64", "od -An -v -tx1 | tr -d ' \\n'"):
        out = subprocess.run(["bash", "-c", command], input=value.encode(), capture_output=True, check=True).stdout
        masked = key.mask(out)
        assert b"[secret KEY]" in masked, command
        assert len(masked) < 30, command


def test_white_space_round_a_value_makes_no_difference() -> None:
    masker = Masker([("TOKEN", "\n  abcdefgh12 \n")])
    assert masker.mask(b"x abcdefgh12.") == b"x [secret TOKEN]."


def test_longest_of_values_that_begin_alike_is_the_one_that_is_named() -> None:
    masker = Masker([("USER", "postgres"), ("URL", "postgres://u:p@db"), ("AGAIN", "postgres")])
    assert masker.mask(b"postgres postgres://u:p@db") == b"[secret USER] [secret URL]"


def test_texts_and_json_are_masked_with_the_names_of_fields_and_without_change_elsewhere() -> None:
    lone = "\udcff ok"
    assert MASKER.text(lone) is lone
    assert MASKER.json({"a": [VALUE, 1, None, True], VALUE: {"b": "fine"}}) == {
        "a": ["[secret TOKEN]", 1, None, True],
        "[secret TOKEN]": {"b": "fine"},
    }


def test_part_of_a_file_is_masked_by_what_is_around_it() -> None:
    secret = VALUE.encode()
    data = b"ab" + secret + b"cd"
    for start in range(len(data)):
        for stop in range(start + 1, len(data) + 1):
            part = MASKER.part(data, start, stop)
            touches = start < len(data) - 2 and stop > 2
            assert (SHOWN_AS in part) == touches
            assert part.replace(SHOWN_AS, b"") == data[start : min(stop, 2)] + data[max(start, len(data) - 2) : stop]


def _streamed(masker: Masker, data: bytes, cuts: list[int]) -> tuple[bytes, bytes]:
    """Return what comes out before the end of a stream and with it."""
    stream, out, start = StreamMasker(masker), b"", 0
    for cut in [*sorted(cuts), len(data)]:
        out += stream.feed(data[start:cut])
        start = cut
        assert len(stream._held) < masker.longest
    return out, stream.finish()


_values = st.lists(
    st.text('ab/é"\n0', min_size=8, max_size=14).filter(lambda text: len(text.strip().encode()) >= 8),
    min_size=1,
    max_size=3,
)


@st.composite
def _streams(draw: st.DrawFn) -> tuple[list[tuple[str, str]], bytes, list[int]]:
    values = [(f"N{i}", value) for i, value in enumerate(draw(_values))]
    shown = sorted(form for _, value in values for form in forms(value))
    piece = st.one_of(
        st.sampled_from(shown),
        st.sampled_from(shown).flatmap(lambda form: st.integers(1, len(form)).map(lambda size: form[:size])),
        st.sampled_from(shown).flatmap(lambda form: st.integers(1, len(form)).map(lambda size: form[-size:])),
        st.binary(max_size=6),
    )
    data = b"".join(draw(st.lists(piece, max_size=8)))
    return values, data, draw(st.lists(st.integers(0, len(data)), max_size=30))


@pytest.mark.promise("secret-split")
@settings(max_examples=150, deadline=None)
@given(_streams())
def test_no_split_of_a_stream_shows_a_value_or_changes_what_is_shown(
    case: tuple[list[tuple[str, str]], bytes, list[int]],
) -> None:
    values, data, cuts = case
    masker = Masker(values)
    whole = masker.mask(data)
    out, rest = _streamed(masker, data, cuts)
    assert out + rest == whole or (whole.startswith(out) and rest.startswith(b"[secret "))
    for form in (form for _, value in values for form in forms(value)):
        assert form not in out + rest
    if not any(form in data for _, value in values for form in forms(value)) and not rest.startswith(b"[secret "):
        assert out + rest == data


def test_what_can_not_be_the_beginning_of_a_value_is_shown_at_once() -> None:
    stream = StreamMasker(MASKER)
    assert stream.feed(b"hello\n") == b"hello\n"
    assert stream.feed(b"x s3c") == b"x "
    assert stream.feed(b"ond\n") == b"s3cond\n"


def test_value_that_the_stream_breaks_off_in_is_masked_unless_it_has_hardly_begun() -> None:
    for size in range(1, len(VALUE.encode())):
        out, rest = _streamed(MASKER, b"x " + VALUE.encode()[:size], [])
        assert (out, rest) == (b"x ", VALUE.encode()[:size] if size <= SHOWN else SHOWN_AS)


def test_a_stream_that_is_read_from_within_a_value_shows_nothing_of_it() -> None:
    secret = VALUE.encode()
    for cut in range(1, len(secret)):
        stream = StreamMasker(MASKER)
        stream.skip(b"before " + secret[:cut])
        assert stream.feed(secret[cut:] + b" after") + stream.finish() == SHOWN_AS + b" after"
        stream = StreamMasker(MASKER)
        stream.skip(b"before " + secret[:cut])
        assert stream.feed(b"\n other") + stream.finish() == b"\n other"


def test_a_stream_made_of_beginnings_holds_no_more_back_than_the_longest_form() -> None:
    """Comparing each of them with the whole of every form would take quadratic time."""
    masker = Masker([("A", "abcdabcd" * 500)])
    stream = StreamMasker(masker)
    out = sum(len(stream.feed(b"abcd" * 4096)) for _ in range(20))
    assert out + len(stream._held) <= 20 * 4 * 4096
    assert len(stream._held) < masker.longest
    assert min(map(len, masker._forms)) >= ANCHOR


def test_forms_of_random_values_are_as_long_as_is_said() -> None:
    for size in (8, 40, 500):
        value = os.urandom(size).decode("latin-1").replace("\0", "x")
        assert max(map(len, forms(value))) <= 6 * len(value.strip().encode()) or size == 8


def test_a_refusal_that_a_call_ends_with_is_masked() -> None:
    def refuse() -> None:
        with calling() as call:
            call.maskers.append(MASKER)
            raise SandpodError(ErrorCode.NOT_FOUND, f"No {VALUE}.", cause=VALUE, next_step="")

    with pytest.raises(SandpodError) as refused:
        refuse()
    assert (refused.value.message, refused.value.cause) == (f"No {SHOWN_AS.decode()}.", SHOWN_AS.decode())
