"""`blockyard export format=pt2|onnx`: the whole computation of a model as a graph, for other programs.

The graph takes batches of any size, of full sequences as the run's data has them. A graph that cannot be made (an
operation that the format lacks) is refused with the exporter's reason.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import warnings
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.atomic_files import write_json
from blockyard.contracts import Inputs
from blockyard.errors import UserError, first_line
from blockyard.model._example_batch import example as zeros
from blockyard.runs.load import Loaded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

PT2, ONNX, FACTS = "model.pt2", "model.onnx", "inputs.json"
CLOSE = 1e-4  # of the largest prediction: what ONNX's own evaluator may differ by
_EMBEDDED = 1 << 30  # bytes of weights that an ONNX file holds itself; protobuf's limit is twice that


def write_pt2(loaded: Loaded, folder: Path) -> list[str]:
    """Write `model.pt2` and the shapes of its inputs. Raises UserError for a model that cannot be traced."""
    import torch

    inputs = example(loaded)
    program = _traced(loaded, inputs)
    program.example_inputs = None  # they would be pickled
    torch.export.save(program, folder / PT2)
    _describe(folder, inputs)
    return [f"torch.export.load('{folder / PT2}').module()(**inputs)", _shapes(inputs)]


def write_onnx(loaded: Loaded, folder: Path) -> list[str]:
    """Write `model.onnx`, which its evaluator finds equal to the model. Raises UserError where it does not."""
    import torch

    try:
        import onnx
        import onnxscript  # noqa: F401 - torch.onnx needs it
        from onnx.reference import ReferenceEvaluator
    except ImportError as error:
        raise UserError("format=onnx needs the packages onnx and onnxscript: pip install blockyard[onnx]") from error
    inputs = example(loaded)
    path = folder / ONNX
    size = sum(value.numel() * value.element_size() for value in loaded.model.state_dict().values())
    try:
        with _quiet(), torch.no_grad():
            expected = loaded.model(Inputs(**inputs))
            program = torch.onnx.export(_traced(loaded, inputs), dynamo=True, verbose=False)
            assert program is not None
            program.save(path, external_data=size > _EMBEDDED)
        onnx.checker.check_model(path)
    except UserError:
        raise
    except Exception as error:  # its exporter raises what any of its passes raises
        raise UserError(f"{loaded.folder.name} cannot be written as ONNX: {first_line(error)}") from error
    try:
        with _quiet():
            run: Any = ReferenceEvaluator(str(path)).run(None, {name: value.numpy() for name, value in inputs.items()})
    except Exception as error:  # as above
        raise UserError(f"ONNX's evaluator does not run {ONNX}: {first_line(error)}") from error
    apart = float((torch.from_numpy(run[0]) - expected).abs().max() / expected.abs().max().clamp_min(1e-9))
    if not apart <= CLOSE:
        raise UserError(f"ONNX's evaluator differs from the model by {apart:.1e} of the largest prediction")
    _describe(folder, inputs)
    return [f"{folder / ONNX}: within {apart:.0e} of the model in ONNX's evaluator", _shapes(inputs)]


def example(loaded: Loaded, batch: int = 2) -> dict[str, Any]:
    """Return what the graph takes, by name: random full sequences of the run's data, from a fixed seed."""
    import torch

    ctx: Any = loaded.model.ctx
    generator = torch.Generator().manual_seed(0)
    inputs = zeros(ctx, "cpu", batch).facts()
    for name, value in inputs.items():
        if value.is_floating_point():
            inputs[name] = torch.randn(value.shape, generator=generator)
        elif name in ("inputs", "source"):
            tokens = ctx.tokens if name == "inputs" else ctx.source_tokens
            high = tokens.vocabulary or min(tokens.codes or (2,))
            inputs[name] = torch.randint(high, value.shape, generator=generator)
    return inputs


def by_name(model: nn.Module) -> nn.Module:
    """Return a module over the weights of `model`, under their names, that takes the fields of `Inputs` by name.

    A graph is called by programs that have no `Inputs`.
    """
    import torch

    class ByName(torch.nn.Module):
        def forward(self, **facts: Any) -> Tensor:
            prediction: Tensor = model(Inputs(**facts))
            return prediction

    names = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    for field in dataclasses.fields(Inputs):
        names.append(inspect.Parameter(field.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None))
    ByName.forward.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]  # names the graph's inputs
    module = ByName()
    for state in ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules"):
        module.__dict__[state] = model.__dict__[state]
    return module


def _traced(loaded: Loaded, inputs: Mapping[str, Tensor]) -> Any:
    import torch

    batch = torch.export.Dim("batch")
    shapes = {name: {0: batch} for name in inputs}
    try:
        with _quiet(), torch.no_grad():
            return torch.export.export(by_name(loaded.model), (), dict(inputs), dynamic_shapes=shapes, strict=False)
    except Exception as error:  # torch.export raises errors of many kinds
        raise UserError(f"{loaded.folder.name} cannot be traced by torch.export: {first_line(error)}") from error


def _describe(folder: Path, inputs: Mapping[str, Tensor]) -> None:
    shapes = {name: {"shape": ["batch", *value.shape[1:]], "dtype": str(value.dtype)} for name, value in inputs.items()}
    write_json(folder / FACTS, shapes)


def _shapes(inputs: Mapping[str, Tensor]) -> str:
    listed = (f"{name} (batch, {', '.join(map(str, value.shape[1:]))})" for name, value in inputs.items())
    return f"inputs: {', '.join(listed).replace(', )', ')')}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notes on its own passes."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
