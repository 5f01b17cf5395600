"""Lightning training of the injected head; the head itself knows nothing of Lightning."""

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from predictors.training.trainer import Training

if TYPE_CHECKING:
    from predictors.training.heads.training import HeadTrainConfig


class HeadTraining(Training[nn.Module]):
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
        self, head: nn.Module, prior_shift: Tensor, class_weights: Tensor | None, config: "HeadTrainConfig"
    ) -> None:
        super().__init__(head, config, self.smoothed)
        self.register_buffer("prior_shift", prior_shift)
        self.register_buffer("class_weights", class_weights)
        self.label_smoothing = config.label_smoothing
        self.schedule: dict[str, Any] = {"factor": config.scheduler_factor, "patience": config.scheduler_patience}

    def smoothed(self, head: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """The training loss of a batch of rows and labels."""
        rows, labels = batch
        return F.cross_entropy(head(rows), labels, self.class_weights, label_smoothing=self.label_smoothing)

    def validation_step(self, batch: tuple[Tensor, ...], index: int) -> None:
        rows, labels = batch
        logits = self.head(rows) + self.prior_shift
        self.log("val_accuracy", (logits.argmax(dim=1) == labels).float().mean(), batch_size=len(labels))
        loss = F.cross_entropy(logits, labels)
        self.log("val_loss", loss, on_step=False, on_epoch=True, batch_size=len(labels))

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **self.schedule)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}
