"""The spelling of paths: whatever bytes a name has, its spelling is plain text that leads back to it."""

import os

from hypothesis import example, given
from hypothesis import strategies as st

from sandpod_runner.protocol.paths import spell, unspell

# Bytes of which spellings are made, so that names that look like one are tried often.
LIKELY = st.lists(st.sampled_from([b"\\", b"x", b"5c", b"e9", b"0a", b"\xe9", b"\n", b"\xc3\xa9", b"/"])).map(b"".join)


@given(LIKELY | st.binary().map(lambda name: name.replace(b"\0", b"")))
@example(rb"caf\xe9.csv")
@example(rb"\x5c\x5cx5c")
def test_spelling_is_plain_text_and_leads_back_to_the_bytes(name: bytes) -> None:
    spelled = spell(os.fsdecode(name))
    spelled.encode()
    assert not any(character < " " or character == "\x7f" for character in spelled)
    assert os.fsencode(unspell(spelled)) == name


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"])).filter(lambda name: "\\x" not in name))
def test_ordinary_names_are_spelled_as_they_are(name: str) -> None:
    assert spell(name) == unspell(name) == name
