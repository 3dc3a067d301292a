"""The precision and the random numbers of the tests of the mathematics."""

import pytest
import torch
from hypothesis import settings

# Fewer examples than hypothesis takes by itself: there are many properties, each of them cheap.
settings.register_profile("mathematics", settings.get_profile("book"), max_examples=30)
settings.load_profile("mathematics")


@pytest.fixture(scope="module")
def float64():
    """Let a whole module compute in float64 and, beside other workers, in one thread."""
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    yield
    torch.set_default_dtype(before)
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def seed():
    """Every test draws the same random numbers, alone or in company."""
    torch.manual_seed(0)
