from __future__ import annotations

import numpy as np
import pytest

from hfmds.data.split_summary import DeviceShare, summarise_split
from hfmds.errors import ConfigurationError

LABELS = np.array([0, 0, 0, 1, 1, 1, 3, 3])
SHARDS = [np.array([0, 1, 3, 2]), np.array([4]), np.array([6, 7])]
NAMES = ("ant", "bee", "cat", "dog")


def test_images_are_counted_by_device_and_class():
    summary = summarise_split(LABELS, SHARDS, NAMES)
    assert summary.counts.tolist() == [[3, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 2]]
    assert summary.rows == [
        DeviceShare(0, images=4, classes=2, largest_class="ant", largest_share=0.75),
        DeviceShare(1, images=1, classes=1, largest_class="bee", largest_share=1.0),
        DeviceShare(2, images=2, classes=1, largest_class="dog", largest_share=1.0),
    ]
    assert (summary.images, summary.available) == (7, 8)
    assert summary.unused_classes == ("cat",)


def test_the_summary_says_what_devices_hold_on_average():
    assert summarise_split(LABELS, SHARDS, NAMES).in_words() == (
        "Devices hold 7 of 8 images, 3 of 4 classes; no device holds cat. "
        "A device holds 2.3 images of 1.3 classes on average, 92 % of them of its largest class."
    )


def test_unused_classes_are_mentioned_only_if_they_exist():
    summary = summarise_split(np.array([1, 0]), [np.array([0, 1])], ("ant", "bee"))
    assert "no device holds" not in summary.in_words()


def test_a_device_without_images_is_named():
    with pytest.raises(ConfigurationError, match="device 1"):
        summarise_split(LABELS, [np.array([0]), np.array([], np.int64)], NAMES)
