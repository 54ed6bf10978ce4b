"""The allocator takes what it is told."""

import platform

from hfmds.service.process.allocator import reuse_freed_memory, share_one_heap


def test_glibc_is_told_to_use_freed_memory_again_and_others_are_left_alone() -> None:
    assert reuse_freed_memory() is (platform.libc_ver()[0] == "glibc")


def test_glibc_is_told_to_have_one_heap_and_others_are_left_alone() -> None:
    assert share_one_heap() is (platform.libc_ver()[0] == "glibc")
