"""What flows between components, and what each family promises. Start reading here.

A model is *tokenizer -> position -> blocks of (token mixer, channel mixer, norm) -> head*;
a task is *data + objective*. Each of those names is a folder next to this one, a folder of
`conf/`, and one class in a file of this one:

    specs.py          what is known before any weight: of data, of tokens, of a model and its parametrization
    baselines.py      rules and simple models beside the runs of a task
    batch.py          what is known of a batch, and of the tokens of one forward pass; position
    builders.py       data, model, layers, optimizer, schedule
    tokenizers.py     tokenizer
    splits.py         the parts of a data set
    objective.py      objective
    modules.py        embedder, token and channel mixer, norm, block, head
    roles.py          the roles of weights
    option_types.py   the ranges of options

Letters, the same in the whole project:
    B batch   N tokens   D width   H heads   K head width   A coordinate axes   V outputs
    M tokens of the keys, where they differ from those of the queries

Members are of two kinds. A *builder* (data, tokenizer, model, objective, optimizer, schedule, parametrization) is
cheap: it is built from its options alone and holds no weights. A *module* (position, token and channel mixer, norm,
block, head) is built later, from a `Context` and its options.
"""

from __future__ import annotations

from blockyard.contracts.baselines import Baseline, Baselines, SimpleModel
from blockyard.contracts.batch import UNREACHABLE, Batch, Inputs, Memory, Position, Seq
from blockyard.contracts.builders import (
    BASE_KIND,
    Architecture,
    DataModule,
    Kind,
    Layers,
    OptimizerBuilder,
    Parts,
    Schedule,
)
from blockyard.contracts.modules import (
    AfterStep,
    Block,
    ChannelMixer,
    Embedder,
    EncodesSource,
    HasAuxiliary,
    Head,
    Model,
    Norm,
    NoWeightDecay,
    Projected,
    Residual,
    TokenMixer,
    Traits,
    active_parameters,
    auxiliary_loss,
    blocks_of_heads,
    iter_blocks,
)
from blockyard.contracts.objective import (
    Distillation,
    DrawsValues,
    Forecaster,
    Objective,
    TorchMetric,
    Transcriber,
    any_split,
)
from blockyard.contracts.option_types import (
    BatchSize,
    Because,
    BlockOrder,
    Count,
    CountOrZero,
    DecayFactors,
    Depth,
    DepthOrZero,
    Expansion,
    FolderPath,
    Heads,
    LayerDecay,
    Length,
    NonNegative,
    Positive,
    Processes,
    Rate,
    RateFactors,
    Samples,
    Seed,
    Side,
    Text,
    Threads,
    Vocabulary,
    Width,
    Workers,
)
from blockyard.contracts.roles import ROLES, Role, parameter_roles, role_of, with_roles
from blockyard.contracts.specs import (
    PLAIN,
    Context,
    DataSpec,
    Issue,
    Parametrization,
    Place,
    TokenSpec,
    UpdateRule,
    plural,
)
from blockyard.contracts.splits import (
    AsksForPart,
    HasBaselines,
    HasDocuments,
    HasLengths,
    HasTexts,
    KeyedOrder,
    Mixed,
    ReadsOutputs,
    Resizable,
    SourceFiles,
    Split,
    Splits,
    Standardized,
    StepOrder,
    TextPairs,
    Transcripts,
)
from blockyard.contracts.tokenizers import CodeTokenizer, GraphTokenizer, ImageTokenizer, TextTokenizer, Tokenizer

__all__ = [
    "BASE_KIND",
    "PLAIN",
    "ROLES",
    "UNREACHABLE",
    "AfterStep",
    "Architecture",
    "AsksForPart",
    "Baseline",
    "Baselines",
    "Batch",
    "BatchSize",
    "Because",
    "Block",
    "BlockOrder",
    "ChannelMixer",
    "CodeTokenizer",
    "Context",
    "Count",
    "CountOrZero",
    "DataModule",
    "DataSpec",
    "DecayFactors",
    "Depth",
    "DepthOrZero",
    "Distillation",
    "DrawsValues",
    "Embedder",
    "EncodesSource",
    "Expansion",
    "FolderPath",
    "Forecaster",
    "GraphTokenizer",
    "HasAuxiliary",
    "HasBaselines",
    "HasDocuments",
    "HasLengths",
    "HasTexts",
    "Head",
    "Heads",
    "ImageTokenizer",
    "Inputs",
    "Issue",
    "KeyedOrder",
    "Kind",
    "LayerDecay",
    "Layers",
    "Length",
    "Memory",
    "Mixed",
    "Model",
    "NoWeightDecay",
    "NonNegative",
    "Norm",
    "Objective",
    "OptimizerBuilder",
    "Parametrization",
    "Parts",
    "Place",
    "Position",
    "Positive",
    "Processes",
    "Projected",
    "Rate",
    "RateFactors",
    "ReadsOutputs",
    "Residual",
    "Resizable",
    "Role",
    "Samples",
    "Schedule",
    "Seed",
    "Seq",
    "Side",
    "SimpleModel",
    "SourceFiles",
    "Split",
    "Splits",
    "Standardized",
    "StepOrder",
    "Text",
    "TextPairs",
    "TextTokenizer",
    "Threads",
    "TokenMixer",
    "TokenSpec",
    "Tokenizer",
    "TorchMetric",
    "Traits",
    "Transcriber",
    "Transcripts",
    "UpdateRule",
    "Vocabulary",
    "Width",
    "Workers",
    "active_parameters",
    "any_split",
    "auxiliary_loss",
    "blocks_of_heads",
    "iter_blocks",
    "parameter_roles",
    "plural",
    "role_of",
    "with_roles",
]
