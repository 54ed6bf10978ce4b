"""The store as a process: killed, restarted, stopped, and started wrongly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from hfmds.domain.digest import Digest
from hfmds.domain.pools import Contribution, Snapshot
from hfmds.service.client.peer import Peer
from hfmds.storage.blobs import FolderBlobs, verify_blob
from hfmds.storage.staging import Staging
from hfmds.wire.chunks import Content
from hfmds.wire.clients.store_client import StoreClient
from hfmds.wire.tensors import encode_batch
from tests.support.waiting import wait_until
from tests.synthesis_store.examples import SPEC, make_batch, named


def test_the_store_imports_no_torch() -> None:
    program = "import sys, synthesis_store.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


class Process:
    """A running store."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self._address_file = folder / "address.json"
        self._address_file.unlink(missing_ok=True)
        inherited = {name: value for name, value in os.environ.items() if "HFMDS_" not in name}
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "synthesis_store"],
            stderr=subprocess.PIPE,
            text=True,
            env={
                **inherited,
                "HFMDS_DATA_DIR": str(folder / "data"),
                "HFMDS_LISTEN": "127.0.0.1:0",
                "HFMDS_METRICS_LISTEN": "127.0.0.1:0",
                "HFMDS_ADDRESS_FILE": str(self._address_file),
                "HFMDS_LOG_FORMAT": "json",
                **variables,
            },
        )

    def addresses(self) -> dict[str, str]:
        wait_until(lambda: self._address_file.exists() or self.popen.poll() is not None)
        assert self.popen.poll() is None, self.popen.communicate()[1]
        addresses: dict[str, str] = json.loads(self._address_file.read_text())
        return addresses

    @asynccontextmanager
    async def client(self) -> AsyncIterator[StoreClient]:
        address = self.addresses()["grpc"]
        client = StoreClient(Peer("synthesis store", address, "HFMDS_SYNTHESIS_STORE"))
        try:
            yield client
        finally:
            await client.close()

    def get(self, path: str) -> str:
        url = f"http://{self.addresses()['metrics']}{path}"
        with urllib.request.urlopen(url, timeout=30) as response:
            return str(response.read().decode())

    def stop(self, signum: signal.Signals) -> tuple[int, str]:
        """Exit code and log."""
        self.popen.send_signal(signum)
        _, log = self.popen.communicate(timeout=60)
        return self.popen.returncode, log


@contextmanager
def running(folder: Path, **variables: str) -> Iterator[Process]:
    process = Process(folder, **variables)
    try:
        yield process
    finally:
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.communicate()


@pytest.mark.integration
async def test_acknowledged_batches_survive_kill_9(tmp_path: Path) -> None:
    device = Content(FolderBlobs(tmp_path / "device"), Staging(tmp_path / "fetching", 1 << 20))
    batch = device.blobs.put_bytes(encode_batch(make_batch(1)))
    late = device.blobs.put_bytes(encode_batch(make_batch(2)))

    async def put(client: StoreClient, device_id: str, digest: Digest) -> int:
        await client.open_pool("pool-1", SPEC)
        return await client.put_batch("pool-1", device_id, digest, device.blobs)

    async def seal(client: StoreClient) -> tuple[Snapshot, tuple[Contribution, ...]]:
        return await client.seal_pool("pool-1", named(a=batch, b=late, c=late))

    with running(tmp_path) as store:
        async with store.client() as client:
            assert await put(client, "a", batch) == batch.size_bytes
        assert store.stop(signal.SIGKILL)[0] == -signal.SIGKILL
    with running(tmp_path) as store:
        async with store.client() as client:
            assert await put(client, "a", batch) == 0
            assert await put(client, "b", late) == late.size_bytes
            sealed = await seal(client)
        store.stop(signal.SIGKILL)
    with running(tmp_path) as store:
        async with store.client() as client:
            assert await seal(client) == sealed
            assert sealed[1] == tuple(named(c=late))
            snapshot = await client.get_snapshot(sealed[0].snapshot_id)
            assert [shard.digest for shard in snapshot.shards] == [batch, late]
            for shard in snapshot.shards:
                device.blobs.delete(shard.digest)
                await client.download_shards(snapshot.snapshot_id, [shard.digest], device)
        verify_blob(device.blobs, batch)
        verify_blob(device.blobs, late)
        assert 'hfmds_store_newest_snapshot_samples{run="run-1"} 6.0' in store.get("/metrics")
        assert store.get("/readyz") == "ready\n"
        code, log = store.stop(signal.SIGTERM)
    assert code == 0, log
    assert not (tmp_path / "address.json").exists()
    messages = [json.loads(line)["message"] for line in log.splitlines()]
    assert messages[0] == "synthesis_store starts"
    assert messages[-1] == "synthesis_store stopped"


@pytest.mark.integration
def test_a_port_in_use_ends_the_process_with_2_and_the_setting_to_change(tmp_path: Path) -> None:
    with running(tmp_path / "one") as first:
        taken = first.addresses()["grpc"]
        with running(tmp_path / "two", HFMDS_LISTEN=taken) as second:
            _, log = second.popen.communicate(timeout=60)
    assert second.popen.returncode == 2
    assert taken in log
    assert "HFMDS_LISTEN" in log


@pytest.mark.integration
def test_a_data_folder_that_cannot_be_ends_the_process_with_2(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    with running(tmp_path) as store:
        _, log = store.popen.communicate(timeout=60)
    assert store.popen.returncode == 2
    assert "HFMDS_DATA_DIR" in log
