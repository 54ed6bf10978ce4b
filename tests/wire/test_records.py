"""Values kept in a database come back as they were."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hfmds.wire.conversions import records
from tests.wire import examples


@pytest.mark.parametrize(
    ("value", "encode", "decode"),
    [
        (examples.RUN_SPEC, records.encode_run_spec, records.decode_run_spec),
        (examples.ROUND, records.encode_round, records.decode_round),
        (examples.UPDATE_REPORT, records.encode_report, records.decode_update_report),
        (examples.SYNTHESIS_REPORT, records.encode_report, records.decode_synthesis_report),
        (examples.UNMEASURED_REPORT, records.encode_report, records.decode_synthesis_report),
        (examples.POOL_SPEC, records.encode_pool_spec, records.decode_pool_spec),
        (examples.HISTOGRAMS, records.encode_histograms, records.decode_histograms),
        (examples.SNAPSHOT.shards[0], records.encode_shard, records.decode_shard),
        (replace(examples.SNAPSHOT, shards=()), records.encode_snapshot, records.decode_snapshot),
    ],
)
def test_a_record_comes_back_as_it_was(
    value: object, encode: Callable[[Any], bytes], decode: Callable[[bytes], object]
) -> None:
    assert decode(encode(value)) == value
