"""One thread per test process: with more, the processes of a parallel run disturb each other."""

import torch

torch.set_num_threads(1)
