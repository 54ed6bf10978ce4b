"""The records that a run's driver writes, all on one database engine."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Engine

from coordinator.records.phases import PhaseRecords
from coordinator.records.retention import RetentionRecords
from coordinator.records.rounds import RoundRecords
from coordinator.records.runs import RunRecords


@dataclass(frozen=True, slots=True)
class DriverRecords:
    """Runs, rounds, phases and needed content in the database.

    On the engine of a term, each transaction fails with Deposed once another coordinator leads.
    """

    runs: RunRecords
    rounds: RoundRecords
    phases: PhaseRecords
    retention: RetentionRecords

    @classmethod
    def on(cls, engine: Engine) -> DriverRecords:
        return cls(
            RunRecords(engine),
            RoundRecords(engine),
            PhaseRecords(engine),
            RetentionRecords(engine),
        )
