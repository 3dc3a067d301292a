"""The precision and the random numbers of the tests of the mathematics."""

import pytest


@pytest.fixture(scope="module")
def float64():
    """Let a whole module compute in float64 and, beside other workers, in one thread."""
    import torch

    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    yield
    torch.set_default_dtype(before)
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def seed(request):
    """Every test of such a module draws the same random numbers, alone or in company."""
    if "float64" in request.fixturenames:
        import torch

        torch.manual_seed(0)
