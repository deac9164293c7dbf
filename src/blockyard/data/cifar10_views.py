"""CIFAR-10 as unordered sets of views: several square crops of each photograph.

Source: Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images; as sets of views Su et al. 2015,
    Multi-view Convolutional Neural Networks for 3D Shape Recognition (arXiv 1505.00880)
Reference: torchvision.datasets.CIFAR10

The model does not learn where on the photograph a view lies. In evaluation a photograph always has the same views.
"""

from __future__ import annotations

from dataclasses import dataclass

from blockyard.data.cifar10 import CIFAR10
from blockyard.data.splits.views import Views


@dataclass(kw_only=True, eq=False)
class CIFAR10Views(Views, CIFAR10):
    """Views of small photographs, read from a folder."""
