"""The allocator takes what it is told."""

import platform

from hfmds.service.allocator import reuse_freed_memory


def test_glibc_is_told_to_use_freed_memory_again_and_others_are_left_alone() -> None:
    assert reuse_freed_memory() is (platform.libc_ver()[0] == "glibc")
