"""A Hydra application of one's own over blockyard's config groups. `python examples/hydra_app.py`

Its primary config, hydra_app.yaml beside this file, has `blockyard` in its defaults list. The command line is Hydra's:
`python examples/hydra_app.py norm=rms steps=10`, `python examples/hydra_app.py --multirun block=pre_norm,parallel`.
"""

import hydra
from omegaconf import DictConfig

import blockyard

blockyard.hydra_groups()


@hydra.main(version_base="1.3", config_path=".", config_name="hydra_app")
def main(cfg: DictConfig) -> float:
    """Build the model for a look at it, train it as a run, and return what a sweeper of Hydra maximises."""
    parts = blockyard.build(cfg)
    parts.load()
    parameters = sum(weight.numel() for weight in parts.model(cfg.seed).parameters())
    print(f"{type(parts.architecture).__name__} with {parameters:,} parameters, {cfg.steps} steps")
    run = blockyard.train(config=cfg)  # or blockyard.lightning(config=cfg) for a Trainer of your own
    metrics = run.summary()["metrics"]
    print("test/accuracy", metrics["test/accuracy"])
    return float(metrics["val/accuracy"])


if __name__ == "__main__":
    main()
