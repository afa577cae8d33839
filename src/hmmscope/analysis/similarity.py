"""Similarity between the layers of two networks."""

import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.schema import require


def linear_cka(
    left: Float64[Tensor, "left_layer left_example left_feature"],
    right: Float64[Tensor, "right_layer right_example right_feature"],
) -> Float64[Tensor, "left_layer right_layer"]:
    """Compute linear centred kernel alignment (CKA) between all layers of two networks.

        ‖Yᵀ X‖² / (‖Xᵀ X‖ ‖Yᵀ Y‖)      with Frobenius norms and centred columns

    X and Y are the features of two layers; the result for a constant layer is NaN.

    Source: Kornblith et al. 2019, Eq. (5).
    """
    if left.shape[1] != right.shape[1]:
        raise InputError(f"right: must have the {left.shape[1]} examples of left, got {right.shape[1]}")
    require(left.shape[1] >= 2, "left", "must have at least 2 examples", left.shape[1])
    x, y = (part - part.mean(1, keepdim=True) for part in (left, right))
    own_x, own_y = ((part.transpose(1, 2) @ part).square().sum((1, 2)).sqrt() for part in (x, y))
    both = torch.stack([(y.transpose(1, 2) @ layer).square().sum((1, 2)) for layer in x])
    return both / (own_x[:, None] * own_y)


def explained_change(
    change: Float64[Tensor, "example feature"],
    causes: Float64[Tensor, "example cause"],
    train: Tensor,
    *,
    ridge: float = 1e-3,
) -> tuple[Float64[Tensor, " test"], Float64[Tensor, " test"]]:
    """Compute held-out squared errors of two predictions of `change`: a map linear in `causes`, and a constant.

    Args:
        change: values to explain (example, coordinate).
        causes: explanatory values (example, feature).
        train: mask of training examples (example,).
        ridge: penalty of the regression.

    Returns:
        Squared errors (test,) of the linear map, and of the training mean.
    """
    centre, scale = causes[train].mean(0), causes[train].std(0).clamp_min(1e-12)
    x = (causes - centre) / scale
    mean = change[train].mean(0)
    gram = x[train].T @ x[train] / train.sum() + ridge * torch.eye(x.shape[1], dtype=x.dtype)
    cross = x[train].T @ (change[train] - mean) / train.sum()
    weights = torch.cholesky_solve(cross, torch.linalg.cholesky(gram))
    left = change[~train] - mean
    return (left - x[~train] @ weights).square().sum(-1), left.square().sum(-1)
