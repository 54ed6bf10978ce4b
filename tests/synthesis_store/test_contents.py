"""Content that nobody needs, and what is said of its end."""

from __future__ import annotations

import pytest

from hfmds.digest import digest_of
from hfmds.storage.database import changing
from synthesis_store.contents import Erased, loosen
from tests.synthesis_store.examples import Store


@pytest.mark.filterwarnings("error")  # SQLAlchemy only warns of a row that is deleted twice
def test_content_that_several_devices_sent_is_erased_and_counted_once(store: Store) -> None:
    contents, data = store.pools.contents, [b"the same", b"another"]
    digests = [store.blobs.put_bytes(one) for one in data]
    with changing(store.engine) as connection:
        for digest in digests:
            loosen(connection, digest, "withdrawn")
    assert contents.sweep([digests[0], digests[1], digests[0]]) == Erased(2, sum(map(len, data)))
    assert not store.blobs.contains(digest_of(data[0]))
    assert contents.sweep([digests[0]]) == Erased()
