"""Images of a device in memory, which do not change."""

from __future__ import annotations

from hfmds.data.named_images import NamedImages


class StillImages(NamedImages):
    """Images with nothing to look at."""

    def look(self) -> None: ...
