"""What torch may use of the processor: all but the tiles of AMX.

Some virtual machines promise tiles that they do not have, and the first product in bfloat16 ends
the process (seen with torch 2.15 under Firecracker). Mixed precision is for GPUs; nothing else here
would use them.
"""

from __future__ import annotations

import os

# For oneDNN, which torch computes with, and which looks when it first computes.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
