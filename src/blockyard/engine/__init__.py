"""Trains a run: the one LightningModule, its loop, callbacks, loggers and summary.

The road of a run, in the order of its steps:

    run            `train`: one attempt at a run, and how its end is recorded
    setup          from the frozen config to a `Job`; `setup_data` and `setup_model` are two parts of it
    job            the Lightning trainer and its `fit`
    loader         the batches by number
    module         `Learner`: forward pass, loss, optimizer step
    callbacks/     `loop` logs, evaluates and saves after a step; the others are called by it
    summary        the best weights tested
    plain_trainer  the same model and data for a Trainer of the user's own, instead of a job

Faults are handled in `faults/`. Lightning's private parts are listed in `lightning/patches`.
"""
