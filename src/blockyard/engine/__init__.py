"""The one LightningModule, callbacks, loggers, cost card."""
