import errno
from pathlib import Path

import pytest

from hfmds.errors import Unavailable
from hfmds.storage.files import full_disk_is_unavailable


def test_a_full_disk_asks_the_sender_to_try_again() -> None:
    with pytest.raises(Unavailable) as refusal, full_disk_is_unavailable(Path("/data")):
        Path("/dev/full").write_bytes(b"x")
    assert str(refusal.value) == "no space left in /data; free some, then try again"


def test_other_faults_of_a_disk_are_not_hidden() -> None:
    with pytest.raises(OSError, match="broken"), full_disk_is_unavailable(Path("/data")):
        raise OSError(errno.EIO, "broken")
