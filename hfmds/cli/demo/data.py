"""The images of the demo on disk: a shard for each device and a held-out set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.leakage.measurement import psnr_nearest
from hfmds.cli.demo.setting import DemoSetting
from hfmds.data.packed import save_npz
from hfmds.data.sources import load_images
from hfmds.data.splits import label_skew
from hfmds.domain.learning import LabelledImages, Pixels


@dataclass(frozen=True, slots=True)
class DemoData:
    """The files of the images, and their similarity among themselves."""

    shards: dict[str, Path]  # by device id
    held_out: Path
    # PSNR in dB of each real image to the most similar other image of its device: the yardstick for
    # the PSNR of synthetic images.
    real_psnr: NDArray[np.float32]


def write_demo_data(setting: DemoSetting, folder: Path) -> DemoData:
    """Split scikit-learn's digits among the devices by class, and write the parts."""
    folder.mkdir()
    digits = load_images(f"digits:{setting.image_size}#train")
    split = label_skew(
        digits.labels,
        setting.devices,
        setting.classes_per_device,
        setting.seed,
        setting.images_per_device,
    )
    images = {f"device-{number:02}": digits.take(part) for number, part in enumerate(split)}
    shards = {}
    for device_id, shard in images.items():
        shards[device_id] = folder / f"{device_id}.npz"
        save_npz(shards[device_id], shard)
    held_out = folder / "held-out.npz"
    save_npz(held_out, _held_out(setting, images))
    real_psnr = np.concatenate([_to_nearest_other(shard.pixels) for shard in images.values()])
    return DemoData(shards, held_out, real_psnr)


def _held_out(setting: DemoSetting, shards: dict[str, LabelledImages]) -> LabelledImages:
    """Return test images of the classes that some device has: no other class can be learned."""
    held = np.unique(np.concatenate([shard.labels for shard in shards.values()]))
    digits = load_images(f"digits:{setting.image_size}#test")
    return digits.take(np.flatnonzero(np.isin(digits.labels, held)))


def _to_nearest_other(pixels: Pixels) -> NDArray[np.float32]:
    if len(pixels) < 2:
        return np.empty(0, np.float32)
    return np.concatenate(
        [psnr_nearest(pixels[i : i + 1], np.delete(pixels, i, axis=0)) for i in range(len(pixels))]
    )
