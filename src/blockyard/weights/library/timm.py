"""Models of timm: `timm:NAME` is a pretrained model, looked up in the local cache of Hugging Face; or `timm:FOLDER`."""

from __future__ import annotations

from blockyard.errors import UserError, did_you_mean
from blockyard.weights.library.hf import HuggingFaceLibrary


class TimmLibrary(HuggingFaceLibrary):
    """Pretrained models of timm, by timm's own names or as timm/REPOSITORY."""

    def repository(self, name: str) -> str:
        """Return the repository of a pretrained model. Raises UserError for a model that timm lacks."""
        if name.startswith("timm/"):
            return name
        import timm

        if not timm.is_model(name):
            raise UserError(f"timm has no model {name!r}{did_you_mean(name, timm.list_models())}")
        settings = timm.get_pretrained_cfg(name)
        repository = settings.hf_hub_id if settings is not None else None
        if not repository:
            raise UserError(f"timm has no pretrained weights of {name}; name a folder, timm:FOLDER")
        return str(repository)


LIBRARY = TimmLibrary()
