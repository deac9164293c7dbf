"""A model of blockyard in a Trainer of Lightning, with stock callbacks. `python examples/lightning_trainer.py`

Lightning's loop decides here how long is trained, when is evaluated and what is saved; the order of the data, the
random numbers and the metrics are those of `blockyard train`. Overrides on the command line are those of blockyard:
`python examples/lightning_trainer.py block=post_norm trainer.max_epochs=2`.
"""

import sys

import pytorch_lightning as pl
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger

import blockyard


def main() -> None:
    """Fit, validate, test and predict."""
    module, data = blockyard.lightning("experiment=vit_digits", "trainer.max_epochs=3", *sys.argv[1:])
    length = module.trainer_arguments()["max_epochs"]
    save = ModelCheckpoint("lightning/checkpoints", monitor="val/loss", filename="best")
    trainer = pl.Trainer(
        max_epochs=length,
        accelerator="auto",
        callbacks=[save, EarlyStopping("val/accuracy", mode="max", patience=3), LearningRateMonitor()],
        logger=CSVLogger("lightning"),
        enable_progress_bar=sys.stdout.isatty(),
    )
    trainer.fit(module, datamodule=data)
    best = type(module).load_from_checkpoint(save.best_model_path)
    trainer.validate(best, datamodule=data)
    trainer.test(best, datamodule=data)
    predicted = trainer.predict(best, datamodule=data)
    assert predicted is not None
    print("sample", int(predicted[0].sample[0]), "is a", int(predicted[0].output[0].argmax()))


if __name__ == "__main__":
    main()
