"""onnxruntime without its telemetry: the one place that imports it.

Left alone it gives the machine a name in the user's cache folder and tells its maker what it
computes (seen in 1.31.1). Nothing may leave a device but what its method needs.
"""

from __future__ import annotations

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # it looks when it is loaded, and then no more

import onnxruntime as onnxruntime

onnxruntime.disable_telemetry_events()  # should somebody have loaded it before
