"""`hfmds snapshots`: tables, pictures, exports and comparisons."""

import csv
import io
import json
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hfmds.algorithm.pixels import levels, of_levels
from hfmds.cli.main import main
from hfmds.data.sources import load_images
from hfmds.domain.digest import digest_of
from hfmds.domain.histograms import histograms_of
from hfmds.domain.learning import LabelledImages, SyntheticBatch
from hfmds.domain.pools import PoolState, PoolStatus, Shard, Snapshot
from hfmds.wire.tensors import encode_batch
from tests.cli.fake_services import FakeStore, serving
from tests.cli.values import a_pool, a_snapshot

NO_SERVER = "127.0.0.1:9"  # the discard port has no listener

Output = pytest.CaptureFixture[str]
Serve = Callable[..., FakeStore]


def sealed(name: str, *batches: SyntheticBatch) -> Snapshot:
    """Make a snapshot of these batches, in the form of their images."""
    classes: Counter[int] = Counter()
    shards = []
    for number, batch in enumerate(batches, start=1):
        counts = Counter(batch.images.labels.tolist())
        digest = digest_of(encode_batch(batch))
        shards.append(Shard(digest, len(batch), f"contributor-{number}", dict(counts), 2))
        classes += counts
    snapshot = a_snapshot(tuple(shards))
    _, channels, height, width = batches[0].images.pixels.shape
    model = replace(snapshot.spec.model, channels=channels, height=height, width=width)
    with_shares = batches[0].images.shares is not None
    return replace(
        snapshot,
        snapshot_id=name,
        spec=replace(snapshot.spec, model=model, with_shares=with_shares),
        samples=classes.total(),
        class_histogram=tuple(classes[c] for c in range(model.classes)),
    )


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Serve named snapshots of batches to the commands of the test."""
    with ExitStack() as stack:

        def start(**snapshots: tuple[SyntheticBatch, ...]) -> FakeStore:
            described = [sealed(name, *batches) for name, batches in snapshots.items()]
            content = [encode_batch(b) for batches in snapshots.values() for b in batches]
            fake = FakeStore(*described, shards=tuple(content))
            monkeypatch.setenv("HFMDS_STORE", stack.enter_context(serving(fake)))
            return fake

        yield start


def colourful(*labels: int) -> SyntheticBatch:
    """Make one image of three channels per label."""
    random = np.random.default_rng(labels)
    pixels = random.integers(0, 256, (len(labels), 3, 5, 4), dtype=np.uint8)
    return replace(
        a_pool(1, len(labels)), images=LabelledImages(pixels, np.array(labels, np.int64))
    )


def mixtures() -> SyntheticBatch:
    plain = a_pool(classes=10)
    shares = np.full((len(plain), 10), 0.05, np.float32)
    shares[np.arange(len(plain)), plain.images.labels] = 0.55
    return replace(plain, images=replace(plain.images, shares=shares))


def json_of(capsys: Output, *command: str) -> Any:
    assert main(["snapshots", *command, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# --- tables and pictures ------------------------------------------------------------------------


def test_list(serve: Serve, capsys: Output) -> None:
    serve(one=(a_pool(),))
    for arguments in ([], ["list"], ["--run", "run-1"]):
        assert main(["snapshots", *arguments]) == 0
        assert "one" in capsys.readouterr().out
    assert main(["snapshots", "--run", "other"]) == 0
    assert "no snapshots of run other yet" in capsys.readouterr().out
    assert json_of(capsys)[0]["samples"] == 12


def test_show(serve: Serve, capsys: Output) -> None:
    serve(one=(colourful(0, 0, 3), colourful(3, 3, 3, 9)))
    assert main(["snapshots", "show", "one"]) == 0
    text = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert f"3 4 {'█' * 40}" in lines
    assert f"0 2 {'█' * 20}" in lines
    assert f"9 1 {'█' * 10}" in lines
    assert any(line.startswith("contributor-2 2 4 3 9 ") for line in lines)
    shown = json_of(capsys, "show", "one")
    assert [shard["class_counts"] for shard in shown["shards"]] == [
        {"0": 2, "3": 1},
        {"3": 3, "9": 1},
    ]
    assert main(["snapshots", "show", "other"]) == 1
    assert "there is no other" in capsys.readouterr().err


def test_show_lists_the_first_shards_or_all(serve: Serve, capsys: Output) -> None:
    serve(one=tuple(colourful(0, number) for number in range(1, 10)) * 3)
    assert main(["snapshots", "show", "one"]) == 0
    text = capsys.readouterr().out
    assert "contributor-20" in text
    assert "contributor-21" not in text
    assert "and 7 more shards; --all lists them" in text
    assert main(["snapshots", "show", "one", "--all"]) == 0
    text = capsys.readouterr().out
    assert "contributor-27" in text
    assert "more shards" not in text


def test_pool(serve: Serve, capsys: Output) -> None:
    batch = colourful(0, 3)
    store = serve(one=(batch,))
    store.pool = PoolStatus(
        pool_id="pool-1",
        spec=sealed("one", batch).spec,
        state=PoolState.HALTED,
        state_reason="its images give too much away",
        devices=1,
        samples=2,
        leaking_samples=1,
        leaking_batches=4,
        leakage=histograms_of(batch),
        opened_at=a_snapshot().sealed_at,
    )
    assert main(["snapshots", "pool", "pool-1"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "state halted" in lines
    assert "reason its images give too much away" in lines
    assert "images 2 of 1 device" in lines
    assert "leaking 1 image, and 4 batches refused for it" in lines
    assert [line.split()[:2] for line in lines if line.startswith(("PSNR", "SSIM"))] == [
        ["PSNR", "paired"],
        ["SSIM", "paired"],
        ["PSNR", "nearest"],
        ["SSIM", "nearest"],
    ]
    assert json_of(capsys, "pool", "pool-1")["state"] == "halted"
    assert main(["snapshots", "pool", "other"]) == 1
    assert "there is no pool other" in capsys.readouterr().err


def test_grid(serve: Serve, capsys: Output, tmp_path: Path) -> None:
    fake = serve(one=(colourful(0, 0, 1), colourful(0, 0, 0), colourful(1, 2)))
    target = tmp_path / "grid.png"
    arguments = ["snapshots", "grid", "one", "--per-class", "2", "--output", str(target)]
    assert main(arguments) == 0
    assert Image.open(target).format == "PNG"
    first, _, third = fake.snapshots["one"].shards
    assert fake.downloaded == [first.digest, third.digest]
    fake.downloaded.clear()
    assert main([*arguments, "--class", "2"]) == 0
    assert fake.downloaded == [third.digest]
    assert main([*arguments, "--class", "7"]) == 1
    assert "no image of these classes" in capsys.readouterr().err
    assert main([*arguments, "--class", "10"]) == 2
    assert "its classes are 0 to 9" in capsys.readouterr().err
    assert main(["snapshots", "grid", "one", "--output", "grid.jpg"]) == 2
    assert "must end in .png" in capsys.readouterr().err


def test_an_unavailable_store_is_an_error(capsys: Output) -> None:
    assert main(["snapshots", "--store", NO_SERVER]) == 1
    complaint = capsys.readouterr().err
    assert f"synthesis store at {NO_SERVER} is unavailable" in complaint
    assert "HFMDS_STORE" in complaint


# --- exports ------------------------------------------------------------------------------------


def by_class(images: LabelledImages) -> dict[int, list[bytes]]:
    """Return the images of each class, in their order."""
    difference: dict[int, list[bytes]] = {}
    for pixels, label in zip(images.pixels, images.labels.tolist(), strict=True):
        difference.setdefault(label, []).append(pixels.tobytes())
    return difference


def all_of(*batches: SyntheticBatch) -> LabelledImages:
    return LabelledImages(
        np.concatenate([batch.images.pixels for batch in batches]),
        np.concatenate([batch.images.labels for batch in batches]),
    )


def test_export_as_npz(serve: Serve, capsys: Output, tmp_path: Path) -> None:
    batches = a_pool(), a_pool(2, 3)
    serve(one=batches)
    target = tmp_path / "pool.npz"
    assert main(["snapshots", "export", "one", "--output", str(target)]) == 0
    assert "pool.npz: 18 images" in capsys.readouterr().out.replace("\n", "")
    difference, expected = load_images(str(target)), all_of(*batches)
    np.testing.assert_array_equal(difference.pixels, expected.pixels)
    np.testing.assert_array_equal(difference.labels, expected.labels)


@pytest.mark.parametrize("batches", [(a_pool(), a_pool(2, 3)), (colourful(1, 0, 9), colourful(9))])
def test_an_exported_folder_is_a_data_source(
    serve: Serve, tmp_path: Path, batches: tuple[SyntheticBatch, ...]
) -> None:
    serve(one=batches)
    target = tmp_path / "pool"
    arguments = ["snapshots", "export", "one", "--format", "folder", "--output"]
    assert main([*arguments, str(target)]) == 0
    assert by_class(load_images(str(target))) == by_class(all_of(*batches))
    names = [f"class-{'abcdefghij'[c]}" for c in range(10)]
    named = tmp_path / "named"
    assert main([*arguments, str(named), "--class-names", ", ".join(names)]) == 0
    assert by_class(load_images(str(named), names)) == by_class(all_of(*batches))


def test_images_in_half_precision_are_drawn_and_exported_as_pictures(
    serve: Serve, tmp_path: Path
) -> None:
    plain = a_pool()
    halves = of_levels(levels(plain.images.pixels), "fp16")
    serve(one=(replace(plain, images=replace(plain.images, pixels=halves)),), two=(plain,))
    target = tmp_path / "pool"
    export = ["snapshots", "export", "one", "--format", "folder", "--output", str(target)]
    assert main(export) == 0
    assert by_class(load_images(str(target))) == by_class(plain.images)
    file = tmp_path / "pool.npz"
    assert main(["snapshots", "export", "one", "--output", str(file)]) == 0
    assert by_class(load_images(str(file))) == by_class(plain.images)
    for name in ("one", "two"):
        assert main(["snapshots", "grid", name, "--output", str(tmp_path / f"{name}.png")]) == 0
    pictures = [np.asarray(Image.open(tmp_path / f"{name}.png")) for name in ("one", "two")]
    below_title = [picture[len(picture) // 5 :] for picture in pictures]  # the title has the name
    np.testing.assert_array_equal(*below_title)


def test_an_exported_folder_describes_each_image(serve: Serve, tmp_path: Path) -> None:
    batches = a_pool(1, 2), a_pool(1, 3)
    serve(one=batches)
    target = tmp_path / "pool"
    export = ["snapshots", "export", "one", "--format", "folder", "--output", str(target)]
    assert main(export) == 0
    with (target / "images.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == [
        f"{row['label']}/{n:07}.png" for n, row in enumerate(rows)
    ]
    assert [row["label"] for row in rows] == ["0", "1", "0", "1", "2"]
    assert [row["contributor"][-1] for row in rows] == ["1", "1", "2", "2", "2"]
    assert {row["round"] for row in rows} == {"2"}
    psnr = np.concatenate([batch.psnr_nearest for batch in batches])
    np.testing.assert_allclose([float(row["psnr_nearest"]) for row in rows], psnr, atol=1e-4)


def test_exports_overwrite_nothing_and_a_failed_export_leaves_nothing(
    serve: Serve, capsys: Output, tmp_path: Path
) -> None:
    fake = serve(one=(a_pool(), a_pool(2, 3)))
    target = tmp_path / "pool"
    export = ["snapshots", "export", "one", "--output", str(target), "--format"]
    fake.content.pop(fake.snapshots["one"].shards[1].digest)
    for kind in ("folder", "webdataset"):
        assert main([*export, kind]) == 1
    assert list(tmp_path.iterdir()) == []
    target.mkdir()
    assert main([*export, "folder"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*export, "npz"]) == 2
    assert "must end in .npz" in capsys.readouterr().err


def test_impossible_exports_are_refused(serve: Serve, capsys: Output, tmp_path: Path) -> None:
    two_channels = replace(
        a_pool(1, 2),
        images=LabelledImages(np.zeros((2, 2, 4, 4), np.uint8), np.arange(2, dtype=np.int64)),
    )
    serve(one=(two_channels,), other=(a_pool(),))
    target = str(tmp_path / "pool")
    assert main(["snapshots", "export", "one", "--format", "folder", "--output", target]) == 2
    assert "images of 2 channels cannot be PNG files; use --format npz" in capsys.readouterr().err
    export = ["snapshots", "export", "other", "--format", "folder", "--output", target]
    assert main([*export, "--class-names", "cat,dog"]) == 2
    assert "--class-names: 2 names for a snapshot of 10 classes" in capsys.readouterr().err
    assert main([*export, "--class-names", "../cat,b,c,d,e,f,g,h,i,j"]) == 2
    assert "'../cat' cannot be the name of a folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_export_as_webdataset(serve: Serve, tmp_path: Path) -> None:
    batches = colourful(1, 0, 9), colourful(9)
    serve(one=batches)
    target = tmp_path / "pool.tar"
    arguments = ["--format", "webdataset", "--output", str(target)]
    assert main(["snapshots", "export", "one", *arguments]) == 0
    with tarfile.open(target) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    # All files of a sample are neighbours and share its name.
    assert list(files) == [f"{n:07}.{kind}" for n in range(4) for kind in ("png", "cls", "json")]
    assert [int(files[f"{n:07}.cls"]) for n in range(4)] == [1, 0, 9, 9]
    expected = all_of(*batches)
    for number, pixels in enumerate(expected.pixels):
        image = Image.open(io.BytesIO(files[f"{number:07}.png"]))
        np.testing.assert_array_equal(np.asarray(image), pixels.transpose(1, 2, 0))
    known = json.loads(files["0000003.json"])
    assert (known["label"], known["contributor"], known["round"]) == (9, "contributor-2", 2)
    assert known["psnr_paired"] == pytest.approx(float(batches[1].psnr_paired[0]), abs=1e-4)


def test_mixtures_are_exported_with_their_class_shares(
    serve: Serve, capsys: Output, tmp_path: Path
) -> None:
    serve(one=(mixtures(),))
    assert main(["snapshots", "show", "one"]) == 0
    assert "mixtures" in capsys.readouterr().out
    target = tmp_path / "pool.npz"
    assert main(["snapshots", "export", "one", "--output", str(target)]) == 0
    assert "30 mixtures, with their class shares" in capsys.readouterr().out
    with np.load(target) as arrays:
        np.testing.assert_array_equal(arrays["shares"], mixtures().images.shares)
    assert load_images(str(target)).shares is None  # the folder is a normal data source
    folder = tmp_path / "pool"
    arguments = ["--format", "folder", "--output", str(folder)]
    assert main(["snapshots", "export", "one", *arguments]) == 0
    with (folder / "images.csv").open(newline="") as file:
        last = list(csv.DictReader(file))[-1]
    assert [float(last[f"share_{c}"]) for c in range(10)] == [0.05] * 9 + [0.55]


# --- comparisons --------------------------------------------------------------------------------


def test_diff_by_shards(serve: Serve, capsys: Output) -> None:
    removed, stayed, added = colourful(0, 0, 1), colourful(2), colourful(0, 3)
    fake = serve(one=(removed, stayed), two=(stayed, added))
    lower = replace(fake.snapshots["two"].leakage, nearest_max=10.0)
    fake.snapshots["two"] = replace(fake.snapshots["two"], leakage=lower)
    difference = json_of(capsys, "diff", "one", "two")
    assert difference["shards"] == {"removed": 1, "carried": 1, "added": 1}
    assert difference["samples"] == {"removed": 3, "carried": 1, "added": 2}
    assert difference["classes"][:4] == [
        {"removed": 2, "carried": 0, "added": 1},
        {"removed": 1, "carried": 0, "added": 0},
        {"removed": 0, "carried": 1, "added": 0},
        {"removed": 0, "carried": 0, "added": 1},
    ]
    assert not fake.downloaded
    assert main(["snapshots", "diff", "one", "two"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == [
        "from snapshot one of run run-1, round 2",
        "to snapshot two of run run-1, round 2",
    ]
    assert "samples 4 -3 1 +2 3" in lines
    assert "class 0 2 -2 0 +1 1" in lines
    assert "nearest max 15.6 dB 10.0 dB -5.6 dB" in lines
    assert "paired mean 10.1 dB 10.1 dB +0.0 dB" in lines


def test_an_exact_diff_finds_samples_that_moved_to_another_shard(
    serve: Serve, capsys: Output
) -> None:
    whole, stayed = a_pool(2, 2), a_pool(3, 3)
    part = whole.take(np.array([0, 3]))
    fake = serve(one=(whole, stayed), two=(stayed, part))
    assert json_of(capsys, "diff", "one", "two")["samples"] == {
        "removed": 4,
        "carried": 9,
        "added": 2,
    }
    difference = json_of(capsys, "diff", "one", "two", "--exact")
    assert difference["samples"] == {"removed": 2, "carried": 11, "added": 0}
    assert difference["classes"][:2] == [{"removed": 1, "carried": 4, "added": 0}] * 2
    assert fake.snapshots["two"].shards[0].digest not in fake.downloaded


def test_a_snapshot_does_not_differ_from_itself(serve: Serve, capsys: Output) -> None:
    serve(one=(a_pool(),))
    for exact in ([], ["--exact"]):
        difference = json_of(capsys, "diff", "one", "one", *exact)
        assert difference["samples"] == {"removed": 0, "carried": 12, "added": 0}
