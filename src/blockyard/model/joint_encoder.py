"""Joint encoder: one sequence of two kinds in which every token sees every other.

Source: Kim et al. 2021, ViLT: Vision-and-Language Transformer Without Convolution or Region Supervision
    (arXiv 2102.03334), section 3.1
Reference: transformers ViltForQuestionAnswering
Cost: that of its blocks over M + N tokens

    [class | registers | source 1 ... M | token 1 ... N]
"""

from __future__ import annotations

from typing import Any, ClassVar

from blockyard.contracts.inherited_options import with_options_of
from blockyard.model.joint import Joint


class JointEncoder(Joint):
    """The bidirectional twin of joint, for one answer to both kinds: head=class_token model.prefix.class_token=true."""

    causal: ClassVar[bool] = False

    @with_options_of(Joint, without=("sees",))
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
