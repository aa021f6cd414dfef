"""For all tests: every test starts from one seed and leaves the number of threads as it was."""

import pytest
import torch


@pytest.fixture(autouse=True)
def same_start():
    num_threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    torch.manual_seed(0)
    yield
    if torch.get_num_threads() != num_threads:  # setting it starts the pool anew
        torch.set_num_threads(num_threads)
    torch.set_default_dtype(dtype)
