"""Peers are compared in float64, on the same random numbers in every run."""

import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def float64():
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)
    torch.set_num_threads(threads)


@pytest.fixture
def randomised():
    """A function that makes everything random that a module could have learned.

    Gains of one, biases, positions and stored means of zero, and stored variances of one would hide
    a term.
    """

    def randomise(module):
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5)
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                nn.init.normal_(part.running_mean, std=0.5)
                nn.init.uniform_(part.running_var, 0.3, 3.0)
        return module

    return randomise
