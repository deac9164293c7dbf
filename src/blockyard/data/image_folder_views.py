"""Your own images as unordered sets of views: several square crops of each image.

Source: the folder layout of torchvision; as sets of views Su et al. 2015, Multi-view Convolutional Neural
    Networks for 3D Shape Recognition (arXiv 1505.00880)
Reference: torchvision.datasets.ImageFolder

The model does not learn where on the image a view lies. In evaluation an image always has the same views.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from blockyard.contracts import Side
from blockyard.data.image_folder import ImageFolder
from blockyard.data.splits.views import Views


@dataclass(kw_only=True, eq=False)
class ImageFolderViews(Views, ImageFolder):
    """Views of image files in one folder per class.

    Options:
        image_size: side of an image in pixels after resizing, before views are cropped
    """

    image_size: Side = 32
    resized_crop: None = field(default=None, init=False, repr=False)  # as the other augmentations, no option here

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a resized image."""
        return (self.channels, self.image_size, self.image_size)
