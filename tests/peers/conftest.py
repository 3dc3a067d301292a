"""Peers are compared in float64, on the same random numbers in every run."""

import pytest
import torch


@pytest.fixture(autouse=True)
def float64():
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)
    torch.set_num_threads(threads)
