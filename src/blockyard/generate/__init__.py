"""Text or images from a trained decoder, token by token, or text by beam search.

api.py           `generate` and `generate_all`: a run and prompts in, a stream of text in whole characters out
request.py       validates prompts and sources, and encodes them
decode.py        sampling and greedy decoding of a batch of prompts
beam_search.py   beam search over a batch of prompts
speculative.py   speculative decoding: accepts tokens that a draft proposes
draft.py         a smaller run, or the text so far, as a draft
retracting.py    a sequence whose last tokens can be taken back
compiled_step.py a step of decoding as one compiled function
diffusion.py     a gap that a masked diffusion model fills
transcribe.py    texts that a model writes for sources in one forward pass
stepper.py       next-token scores, from a cache if the model has one, and the longest sequence that a model takes
stats.py         the cost of a generation
sampling.py      from scores to a token id
images.py        `generate_images`: a run of image tokens in, images out, also as one PNG file
codes.py         `generate_outputs`: images, or sounds, that a run writes as codes for sources
judge.py         a classifier's readings of drawn images, and their distance to training images
"""

from __future__ import annotations

from blockyard.generate.api import generate, generate_all
from blockyard.generate.images import generate_images

__all__ = ["generate", "generate_all", "generate_images"]
