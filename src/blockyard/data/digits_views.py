"""Handwritten digits as unordered sets of views: several small square crops of each image.

Source: Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits; as sets of views Su et al. 2015,
    Multi-view Convolutional Neural Networks for 3D Shape Recognition (arXiv 1505.00880)
Reference: sklearn.datasets.load_digits

The model does not learn where on the image a view lies. In evaluation an image always has the same views.
"""

from __future__ import annotations

from dataclasses import dataclass

from blockyard.contracts import Side
from blockyard.data.digits import Digits
from blockyard.data.splits.views import Views


@dataclass(kw_only=True, eq=False)
class DigitsViews(Views, Digits):
    """Views of scikit-learn's digits; needs no file and no network."""

    views: Side = 6
    size: Side = 5
    flip: bool = False
