"""One torch thread, as the workers have: small batches only lose by more."""

import torch

torch.set_num_threads(1)
