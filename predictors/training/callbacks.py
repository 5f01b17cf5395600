"""Lightning callbacks of head training: the epoch curve, the best weights (kept in memory), and a progress bar over epochs."""

import copy
from typing import Any

import lightning as L
from tqdm import tqdm


class BestEpoch(L.Callback):
    """Keeps the curve of every epoch and the head's weights at the lowest validation loss."""

    def __init__(self) -> None:
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Any] | None = None
        self.best_epoch = -1
        self.best_loss = float("inf")

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        # Runs after the epoch's validation, when both losses are known.
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.history.append({"epoch": trainer.current_epoch, **dict(sorted(metrics.items())), "learning_rate": rate})
        if metrics["val_loss"] < self.best_loss:
            self.best_loss, self.best_epoch = metrics["val_loss"], trainer.current_epoch
            self.best = copy.deepcopy(module.head.state_dict())


class EpochBar(L.Callback):
    """One progress bar over epochs; silent where the output is no terminal."""

    def on_fit_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.bar = tqdm(total=trainer.max_epochs, desc="training", unit="epoch", disable=None)

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.bar.set_postfix(val_loss=f"{float(trainer.callback_metrics['val_loss']):.4f}")
        self.bar.update()

    def on_fit_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.bar.close()
