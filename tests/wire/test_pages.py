"""Lists in pages: all of it, in order, and never too much at once."""

from collections.abc import Sequence

import pytest

from hfmds.v1.admin_pb2 import Device
from hfmds.wire.pages import ASKED_FOR_A_PAGE, first_page, first_page_of, page

MEBIBYTE = 1 << 20


def devices(count: int, padding: int = 0) -> list[Device]:
    return [Device(device_id=str(number), task_id="x" * padding) for number in range(count)]


def pages(entries: Sequence[Device], page_size: int) -> list[list[str]]:
    """The ids on each page, as a client that goes on to the last one sees them."""
    found: list[list[str]] = []
    token = ""
    while not found or token:
        taken, token = page(entries, page_size, token, lambda device: device.device_id)
        found.append([device.device_id for device in taken])
    return found


def test_pages_of_a_list_that_is_asked_for_from_an_entry_on() -> None:
    entries, found, behind = devices(5), list[list[str]](), 0
    more = True
    while more:
        taken, more = first_page_of(entries[behind : behind + ASKED_FOR_A_PAGE], 2)
        found.append([device.device_id for device in taken])
        behind += len(taken)
    assert found == [["0", "1"], ["2", "3"], ["4"]]
    assert first_page_of(devices(ASKED_FOR_A_PAGE), 0)[1]
    assert first_page_of([], 2) == ([], False)


def test_pages_hold_at_most_the_number_asked_for() -> None:
    assert pages(devices(5), 2) == [["0", "1"], ["2", "3"], ["4"]]
    assert pages(devices(4), 2) == [["0", "1"], ["2", "3"]]
    assert pages([], 2) == [[]]


@pytest.mark.parametrize("page_size", [0, -1, 1001, 2**31 - 1])
def test_a_page_holds_at_most_a_thousand_whatever_is_asked_for(page_size: int) -> None:
    assert [len(found) for found in pages(devices(2001), page_size)] == [1000, 1000, 1]


def test_a_page_of_large_entries_ends_before_a_mebibyte() -> None:
    entries = devices(10, padding=MEBIBYTE // 4)  # the id makes four of them too much
    assert [len(found) for found in pages(entries, 0)] == [3, 3, 3, 1]
    assert sum(entry.ByteSize() for entry in first_page(entries)) <= MEBIBYTE


def test_an_entry_that_is_too_large_has_a_page_of_its_own() -> None:
    assert pages(devices(2, padding=MEBIBYTE + 1), 0) == [["0"], ["1"]]


def test_a_list_that_grew_at_the_front_goes_on_behind_the_token() -> None:
    grown = [Device(device_id="new"), *devices(4)]
    taken, token = page(grown, 2, "1", lambda device: device.device_id)
    assert [device.device_id for device in taken] == ["2", "3"]
    assert token == ""


def test_a_token_whose_entry_is_gone_starts_over() -> None:
    taken, token = page(devices(3), 2, "gone", lambda device: device.device_id)
    assert [device.device_id for device in taken] == ["0", "1"]
    assert token == "1"
