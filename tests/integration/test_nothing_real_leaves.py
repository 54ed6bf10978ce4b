"""A device sends and logs no real image: the test searches every byte of a run."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from hfmds.algorithm.pixels import normalise
from hfmds.data.sources import load_images
from hfmds.domain.methods import Hfmds
from hfmds.domain.recipe import ModelSpec, Normalisation, Recipe
from hfmds.domain.round_policy import EvaluationByDevices, RoundPolicy
from hfmds.domain.runs import RunSpec, RunState
from hfmds.errors import InvalidInput
from hfmds.service.client.peer import Peer
from hfmds.wire.clients.admin_client import AdminClient
from hfmds.wire.tensors import read_batch
from tests.support.http2_messages import streams
from tests.support.programs import Programs
from tests.support.tcp_proxy import Proxy

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]  # making a plan takes long

SIDE = 16
MODEL = ModelSpec(channels=1, height=SIDE, width=SIDE, classes=10)
NORMALISATION = Normalisation((0.5,), (0.25,))
RECIPE = Recipe(
    MODEL,
    NORMALISATION,
    rounds=2,
    method=Hfmds(every_rounds=1, first_round=1, samples_per_device=4, steps=5),
)
PIECE_BYTES = 24  # long enough to rule out chance


def encodings(pixels: NDArray[np.uint8]) -> Iterator[tuple[str, bytes]]:
    """Return the encodings of an image [channels, height, width] that might leak, by row."""
    scaled = pixels.astype(np.float64) / 255
    normalised = normalise(pixels[None], NORMALISATION)[0]
    for row in range(pixels.shape[1]):
        values = np.ascontiguousarray(pixels[0, row])
        yield "uint8", values.tobytes()
        yield "upside down", values[::-1].tobytes()
        yield "hex", values.tobytes().hex().encode()
        yield "as a list", ", ".join(map(str, values[:8])).encode()
        yield "as an array", " ".join(f"{value:3d}" for value in values[:8]).encode()
        for start in range(3):  # base64 encodes groups of three bytes
            length = (len(values) - start) // 3 * 3
            yield "base64", base64.b64encode(values[start : start + length].tobytes())
        if row % 4 == 0:
            for name, floats in (
                ("of pixels", pixels[0, row].astype(np.float64)),
                ("in [0, 1]", scaled[0, row]),
                ("normalised", normalised[0, row]),
            ):
                for kind in (np.float16, np.float32, np.float64):
                    # Half a row: another order of operations may change the last bit of some
                    # values.
                    yield f"{kind.__name__} {name}", floats[:8].astype(kind).tobytes()
    for column in range(0, pixels.shape[2], 4):
        yield "a column", pixels[0, :, column].tobytes()


def pieces(file: bytes) -> Iterator[tuple[str, bytes]]:
    """Return pieces of an image file's compressed bytes, without the common header."""
    middle = file[len(file) // 2 :]
    for start in range(0, len(middle) - PIECE_BYTES, PIECE_BYTES):
        piece = middle[start : start + PIECE_BYTES]
        yield "a piece of the file", piece
        yield "a piece in base64", base64.b64encode(piece)


def leaked(needles: Iterator[tuple[str, bytes]], haystacks: Sequence[bytes]) -> set[str]:
    return {name for name, needle in needles if any(needle in content for content in haystacks)}


def make_images(folder: Path) -> list[Path]:
    """Write images of noise, without equal rows, as PNG and as JPEG."""
    random = np.random.default_rng(0)
    files = []
    for number in range(8):
        kind = "png" if number % 2 else "jpg"
        file = folder / str(number % 2) / f"{number}.{kind}"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (SIDE, SIDE), np.uint8)).save(file, quality=95)
        files.append(file)
    return files


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_the_search_finds_an_image_in_any_form(tmp_path: Path, cut: int) -> None:
    files = make_images(tmp_path)
    pixels = load_images(str(tmp_path)).pixels[0]
    padding = bytes(range(cut))
    for name, needle in encodings(pixels):
        assert name in leaked(iter([(name, needle)]), [padding + needle + b"more"])
    everything = padding + pixels.tobytes()
    assert {"uint8"} <= leaked(encodings(pixels), [b"", everything])
    assert "base64" in leaked(encodings(pixels), [base64.b64encode(everything)])
    assert "float32 normalised" in leaked(
        encodings(pixels), [padding + normalise(pixels[None], NORMALISATION).tobytes()]
    )
    assert leaked(pieces(files[0].read_bytes()), [files[0].read_bytes()]) == {"a piece of the file"}
    assert leaked(encodings(pixels), [np.random.default_rng(1).bytes(100_000)]) == set()


async def test_no_byte_of_a_real_image_is_sent_or_logged(tmp_path: Path, plans_dir: Path) -> None:
    files = make_images(tmp_path / "images")
    real = load_images(str(tmp_path / "images")).pixels
    with Programs(tmp_path) as programs:
        sent = await whole_run(programs, plans_dir)
        log = (tmp_path / "device.log").read_bytes()
    assert b"update accepted" in log
    where = [*sent, log]
    for pixels in real:
        assert leaked(encodings(pixels), where) == set()
    for file in files:
        assert leaked(pieces(file.read_bytes()), where) == set()
    # The search finds the synthetic images, so it looks in the right places.
    synthetic = shared_images(tmp_path / "state")
    assert len(synthetic) == 8  # two refreshes
    for pixels in synthetic:
        assert "uint8" in leaked(encodings(pixels), sent)


async def whole_run(programs: Programs, plans_dir: Path) -> list[bytes]:
    """Return the bytes that a device sends, as connections and without HTTP/2 frames."""
    store = programs.store().address("grpc")
    coordinator = programs.coordinator(store, plans_dir=plans_dir).address("grpc")
    async with (
        AsyncExitStack() as stack,
        asyncio.timeout(600),
        Proxy(coordinator).running() as to_coordinator,
        Proxy(store).running() as to_store,
    ):
        client = AdminClient(Peer("coordinator", coordinator, "HFMDS_COORDINATOR"))
        stack.push_async_callback(client.close)
        policy = RoundPolicy(evaluation=EvaluationByDevices(devices=1))
        await client.create_run(RunSpec(RECIPE, policy), "run")
        programs.start(
            "device",
            "edge_client",
            device_id="device",
            data=str(programs.folder / "images"),
            coordinator=to_coordinator.address,
            store=to_store.address,
            state_dir=str(programs.folder / "state"),
            log_level="debug",
            log_format="console",
        )
        async for _ in client.watch_run("run"):
            pass
        run = await client.get_run("run")
        assert run.state is RunState.COMPLETED, run.state_reason
        heard = [bytes(connection) for connection in (*to_coordinator.heard, *to_store.heard)]
    return heard + [data for connection in heard for data in streams(connection)]


def shared_images(state: Path) -> list[NDArray[np.uint8]]:
    """Return the synthetic images in the device's cache."""
    images: list[NDArray[np.uint8]] = []
    for path in (state / "cache" / "blobs").glob("[0-9a-f]" * 64):
        with suppress(InvalidInput):  # it holds weights
            images += list(read_batch(path, path.name).images.pixels)
    return images
