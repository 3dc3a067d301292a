"""Settings of the tests of the mathematics: the same numbers in every run, one thread for each worker."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("book", derandomize=True, database=None, deadline=None, max_examples=30)
settings.load_profile("book")


@pytest.fixture(autouse=True)
def seed():
    """Every test draws the same random numbers, alone or in company."""
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def float64():
    """Let a whole module compute in float64, the precision of the mathematics."""
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    yield
    torch.set_default_dtype(before)
    torch.set_num_threads(threads)
