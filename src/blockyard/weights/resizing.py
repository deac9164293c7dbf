"""Resizes tables of positions and of token ids to the tokens of a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from blockyard.contracts import Embedder, Position
from blockyard.weights.lora import plain_name

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """What resizing must know of a model's tokens besides the shapes of its weights.

    grid: of a full sequence; None if not known
    mask: whether the last token id is one that hides others, which an objective has added
    """

    grid: Shape | None = None
    mask: bool = False


UNKNOWN = Layout()


class Fitting:
    """Resizes tables to the tokens of a model: those of positions by their scheme, those of token ids by the mask."""

    def __init__(self, model: nn.Module, theirs: Layout, ours: Layout) -> None:
        self.theirs, self.ours = theirs, ours
        modules = dict(model.named_modules())
        names = {id(tensor): name for name, tensor in reversed(own_tensors(model).items())}
        self.schemes = {
            f"{path}.{name}": module
            for path, module in modules.items()
            if isinstance(module, Position)
            for name, _ in module.named_parameters(recurse=False)
        }
        embedders = [module for module in modules.values() if isinstance(module, Embedder)]
        self.token_tables = {names[id(each.table)] for each in embedders if each.table is not None}

    def fitted(self, name: str, own: Tensor, value: Tensor) -> Tensor | None:
        """A tensor of the source as one of the model's; None where it is taken as it is, or cannot be.

        own: the model's, whose row of the mask stays where the source has none
        """
        if name in self.schemes:
            return self.schemes[name].resized(name.rpartition(".")[2], value, self.theirs.grid)
        if name not in self.token_tables or self.theirs.mask == self.ours.mask or value.shape[1:] != own.shape[1:]:
            return None
        rows = len(own) - self.ours.mask
        if len(value) - self.theirs.mask != rows:
            return None
        return torch.cat([value[:rows], own[rows:]])


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model by the names they have without additions."""
    state = model.state_dict(keep_vars=True)
    return {plain: tensor for name, tensor in state.items() if (plain := plain_name(name)) is not None}
