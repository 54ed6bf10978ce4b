from hfmds.storage.migrations import run_migrations
from tests.storage.toy.tables import metadata

run_migrations(metadata)
