"""gMLP of timm. Its names fix width, depth and patch.

Reference: timm models/mlp_mixer.py, SpatialGatingBlock
"""

from __future__ import annotations

from blockyard.weights.convert.preset.mixer import inner, mlp_mixer

_LAYER = {
    "token_norm": "norm",
    "token_mixer.proj_in": "mlp_channels.fc1",
    "token_mixer.proj_out": "mlp_channels.fc2",
    "token_mixer.gate.norm": "mlp_channels.gate.norm",
    "token_mixer.gate": "mlp_channels.gate.proj",
}

CONVERTER = mlp_mixer("gmlp", _LAYER, [inner("hidden", "proj_in")])
