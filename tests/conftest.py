"""What all tests share: one thread per process, and the folder of real data where there is one."""

import os
from pathlib import Path

# Before torch is imported, and inherited by the processes that tests start.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# Examples on a busy machine may take any time; pytest-timeout catches what hangs.
settings.register_profile("semisight", deadline=None)
settings.load_profile("semisight")


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder that holds `mnist/`, `cifar-10-batches-bin/` and `flickr8k/`; without it the test is skipped."""
    folder = os.environ.get("SEMISIGHT_DATA")
    if not folder:
        pytest.skip("needs real data: set SEMISIGHT_DATA to a folder holding mnist/, cifar-10-batches-bin/, flickr8k/")
    root = Path(folder)
    if not root.is_dir():
        pytest.fail(f"SEMISIGHT_DATA is {folder}, which is not a folder")
    return root
