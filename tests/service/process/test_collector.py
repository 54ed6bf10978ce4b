"""The collector leaves alone what stays."""

import gc

from hfmds.service.process.collector import spare_what_stays


def test_the_collector_does_not_look_at_what_was_there() -> None:
    there = [["here", "to stay"]]
    assert gc.is_tracked(there)
    try:
        spare_what_stays()
        assert not any(each is there for each in gc.get_objects())
    finally:
        gc.unfreeze()
    assert any(each is there for each in gc.get_objects())
