from __future__ import annotations

import torch

# Tiny tensors: a second thread only waits, and on a busy machine waits long.
torch.set_num_threads(1)
