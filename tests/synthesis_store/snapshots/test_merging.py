"""Merging batches into a snapshot."""

import numpy as np

from hfmds.algorithm.leakage.measurement import summarise_leakage
from hfmds.algorithm.pool import merge
from synthesis_store.snapshots.merging import Merging
from tests.synthesis_store.examples import MODEL, joined, make_batch, same


def test_batches_without_duplicates_come_back_as_they_are() -> None:
    merging = Merging(MODEL.classes)
    first, second = make_batch(1), make_batch(2)
    assert merging.add(first)[0] is first
    assert merging.add(second)[0] is second
    assert (merging.samples, merging.duplicates) == (6, 0)


def test_of_equal_samples_the_first_stays_within_and_across_batches() -> None:
    merging = Merging(MODEL.classes)
    one, two, three = make_batch(1, 2), make_batch(2, 3), make_batch(3, 1)
    assert same(merging.add(joined(one, two, one))[0], joined(one, two))
    assert same(merging.add(joined(two, three))[0], three)
    assert len(merging.add(one)[0]) == 0
    assert (merging.samples, merging.duplicates) == (6, 7)


def test_merging_gives_the_result_of_the_algorithm() -> None:
    batches = {f"device-{seed}": joined(make_batch(seed), make_batch(seed % 2)) for seed in (3, 2)}
    merging = Merging(MODEL.classes)
    merged = joined(*(merging.add(batches[device])[0] for device in sorted(batches)))
    expected = merge(batches)
    assert same(merged, expected)
    assert merging.class_histogram == tuple(
        np.bincount(expected.images.labels, minlength=MODEL.classes)
    )
    assert merging.leakage() == summarise_leakage(expected.psnr_paired, expected.psnr_nearest)


def test_the_same_pixels_with_another_label_are_another_sample() -> None:
    batch = make_batch(1, 1)
    other = make_batch(1, 1)
    other.images.labels[:] = (batch.images.labels + 1) % MODEL.classes
    merging = Merging(MODEL.classes)
    merging.add(batch)
    assert len(merging.add(other)[0]) == 1
