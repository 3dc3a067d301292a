"""How the tests measure an order of convergence: the slope of log(error) over log(step)."""

import numpy as np


def order(steps, errors):
    """The exponent p of the least-squares fit error ≈ C · step^p."""
    slope, _ = np.polyfit(np.log(steps), np.log([float(error) for error in errors]), 1)
    return slope
