"""The committed stubs are what the contracts say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def test_committed_stubs_are_what_the_contracts_generate(tmp_path: Path) -> None:
    script = REPOSITORY / "protos" / "generate.py"
    spec = importlib.util.spec_from_file_location("generate", script)
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    generate.generate(tmp_path)

    def stubs(root: Path) -> dict[str, str]:
        return {path.name: path.read_text() for path in (root / "hfmds/v1").glob("*_pb2*.py*")}

    committed, fresh = stubs(REPOSITORY), stubs(tmp_path)
    assert fresh
    assert committed.keys() == fresh.keys(), "run `make proto` and commit what it writes"
    different = [name for name in fresh if fresh[name] != committed[name]]
    assert not different, "run `make proto` and commit what it writes"
