"""Coefficients of csrc/platform/vector_math.h: weighted least squares on Chebyshev nodes, iterated towards minimax.

Needs numpy and scipy (float64 references); prints the float32 coefficients and the largest relative error of each fit.
"""

import numpy as np
from scipy.special import erf, erfcx


def fit(function, low, high, degree, rounds=60):
    """Polynomial with least largest relative error: least squares, reweighted where the error is large (Lawson)."""
    nodes = (low + high) / 2 + (high - low) / 2 * np.cos(np.pi * (np.arange(2000) + 0.5) / 2000)
    target = function(nodes)
    matrix = np.vander(nodes, degree + 1, increasing=True) / target[:, None]
    weights = np.ones_like(nodes)
    best, best_error = None, np.inf
    for _ in range(rounds):
        solution = np.linalg.lstsq(matrix * np.sqrt(weights)[:, None], np.sqrt(weights), rcond=None)[0]
        errors = np.abs(matrix @ solution.astype(np.float32).astype(np.float64) - 1)
        if errors.max() < best_error:
            best, best_error = solution, errors.max()
        weights *= np.abs(matrix @ solution - 1) + 1e-16
        weights /= weights.sum()
    return best.astype(np.float32), best_error


def show(name, coefficients, error):
    print(f"{name}: largest relative error {error:.2e}")
    print("  " + ", ".join(f"{float(value):.9g}f" for value in coefficients))


# exp(r) on |r| <= ln(2) / 2
show("exp", *fit(np.exp, -np.log(2) / 2, np.log(2) / 2, 6))


def odd_part(square):
    """(cdf(x) - 1 / 2) / x of the normal distribution function, of x * x."""
    x = np.sqrt(square)
    return erf(x / np.sqrt(2)) / (2 * x)


show("centre, |x| <= 1", *fit(odd_part, 0.0, 1.0, 4))

# exp(x * x / 2) * cdf(-x) for 1 <= x <= 15 as a polynomial in t = 1 / (1 + SCALE * x)
SCALE = float(np.float32(0.45))


def scaled_tail(t):
    return erfcx((1 / t - 1) / SCALE / np.sqrt(2)) / 2


show("tail, |x| >= 1", *fit(scaled_tail, 1 / (1 + 15 * SCALE), 1 / (1 + SCALE), 8))

# For results of 16 bits (csrc/platform/gpu.h, short_gelu): exp(x * x / 2) * cdf(-x) / t for any x >= 0
SCALE = float(np.float32(0.39))
show("tail of short_gelu", *fit(lambda t: scaled_tail(t) / t, 1e-4, 1.0, 6))
