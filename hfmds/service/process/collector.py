"""Python's collector of cycles, for a server that has much that stays for good."""

from __future__ import annotations

import gc


def spare_what_stays() -> None:
    """Have the collector leave alone what there is by now: modules, tables, settings.

    Otherwise it looks at all of it again and again while nothing else runs, which takes 0.2 s
    where torch and SQLAlchemy are loaded. Call it once all that is needed for good is there.
    """
    gc.collect()
    gc.freeze()
