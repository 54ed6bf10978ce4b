"""Every conversion from the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmds.domain.tasks import UnreadableTask
from hfmds.errors import HfmdsError
from hfmds.event_chain import flaw
from hfmds.wire.conversions.events import event_from, event_message
from tests.fuzz.budget import tried
from tests.fuzz.protobuf import anything, changed, damaged, decoded
from tests.wire.examples import EVENT
from tests.wire.test_conversions import PAIRS


@pytest.mark.parametrize("name", PAIRS)
@tried(15)
@given(data=st.data())
def test_a_message_gives_a_value_or_a_domain_error(name: str, data: st.DataObject) -> None:
    example, message_of, value_of = PAIRS[name]
    valid = message_of(example)
    kind = type(valid)
    message = data.draw(
        changed(valid)
        | anything(kind)
        | damaged(valid.SerializeToString()).map(lambda sent: decoded(kind, sent) or kind())
    )
    try:
        value = value_of(message)
    except HfmdsError:
        return
    if isinstance(value, UnreadableTask):
        return
    # A decoded value survives another round trip. NaN equals no number.
    again = value_of(message_of(value))
    assert again == value or "nan" in repr(value)


@tried(100)
@given(data=st.data())
def test_checking_a_log_finds_its_first_flaw(data: st.DataObject) -> None:
    sent = data.draw(st.lists(changed(event_message(EVENT)), max_size=3))
    try:
        events = [event_from("log", message) for message in sent]
    except HfmdsError:
        return
    assert bool(flaw(events, "log")) == bool(events)
