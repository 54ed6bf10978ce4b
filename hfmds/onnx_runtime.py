"""onnxruntime without its telemetry. No other module imports onnxruntime.

By default it writes an id of the machine into the user's cache folder and reports to its maker
what it computes (seen in 1.31.1). Nothing may leave a device except what its method needs.
"""

from __future__ import annotations

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # onnxruntime reads it once, at import

import onnxruntime as onnxruntime

onnxruntime.disable_telemetry_events()  # in case something imported it earlier
