"""Comparisons of computed with exact numbers, and of errors with what they must say, for several test modules."""

import numpy as np
import pytest
import torch

from hmmscope.errors import InputError


def close(computed, exact, *, relative=1e-12):
    """Equal up to rounding; zeros and minus infinities exactly; never NaN."""
    computed = computed.numpy() if isinstance(computed, torch.Tensor) else np.asarray(computed)
    exact = np.asarray(exact, dtype=np.float64)
    assert computed.dtype == np.float64
    assert computed.shape == exact.shape
    assert not np.isnan(computed).any()
    sharp = (exact == 0) | np.isinf(exact)
    np.testing.assert_array_equal(computed[sharp], exact[sharp])
    np.testing.assert_allclose(computed[~sharp], exact[~sharp], rtol=relative, atol=0)


def floats(nested):
    return [floats(item) for item in nested] if isinstance(nested, list | tuple) else float(nested)


def refuses(call, *parts, kind=InputError, match=None):
    """Return the message of the error that a call raises: one line, with these parts."""
    with pytest.raises(kind, match=match) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message
    return message
