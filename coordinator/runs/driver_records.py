"""The records that a run's driver writes, all on one database engine."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Engine

from coordinator.records.phases import PhaseRecords
from coordinator.records.rounds import RoundRecords
from coordinator.records.runs import RunRecords


@dataclass(frozen=True, slots=True)
class DriverRecords:
    """Runs, rounds and phases in the database.

    On the engine of a term, each transaction fails with Deposed once another coordinator leads.
    """

    runs: RunRecords
    rounds: RoundRecords
    phases: PhaseRecords

    @classmethod
    def on(cls, engine: Engine) -> DriverRecords:
        return cls(RunRecords(engine), RoundRecords(engine), PhaseRecords(engine))
