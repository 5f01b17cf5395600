"""Lightning training of the injected head; the head itself knows nothing of Lightning."""

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class HeadTraining(L.LightningModule):
    """Cross-entropy with label smoothing on training rows; plain cross-entropy on validation rows.

    Validation rows have natural class shares, and a head that was balanced believes in other ones. So validation adds
    ``prior_shift`` = log natural share - log training share to the logits: the loss that is monitored is the one of the
    probabilities that are served.

    Parameters
    ----------
    head
        Maps reduced rows [B, R] to logits [B, L].
    prior_shift, class_weights
        One value per class; weights only where balancing is by loss weights.
    """

    prior_shift: Tensor
    class_weights: Tensor | None

    def __init__(
        self,
        head: nn.Module,
        prior_shift: Tensor,
        class_weights: Tensor | None,
        learning_rate: float,
        weight_decay: float,
        label_smoothing: float,
        scheduler_factor: float,
        scheduler_patience: int,
    ) -> None:
        super().__init__()
        self.head = head
        self.register_buffer("prior_shift", prior_shift)
        self.register_buffer("class_weights", class_weights)
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.label_smoothing = label_smoothing
        self.scheduler_factor, self.scheduler_patience = scheduler_factor, scheduler_patience

    def model_step(self, batch: tuple[Tensor, Tensor], stage: str) -> Tensor:
        """Loss of one batch, logged as ``<stage>_loss`` (mean over the epoch)."""
        rows, labels = batch
        logits = self.head(rows)
        if stage == "train":
            loss = F.cross_entropy(logits, labels, self.class_weights, label_smoothing=self.label_smoothing)
        else:
            logits = logits + self.prior_shift
            loss = F.cross_entropy(logits, labels)
            accuracy = (logits.argmax(dim=1) == labels).float().mean()
            self.log(f"{stage}_accuracy", accuracy, batch_size=len(labels))
        self.log(f"{stage}_loss", loss, on_step=False, on_epoch=True, batch_size=len(labels))
        return loss

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return self.model_step(batch, "train")

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.model_step(batch, "val")

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.head.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, factor=self.scheduler_factor, patience=self.scheduler_patience
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}
