"""What is trained is the same whatever stands around it: clusters, ranks, Lightning's own variables, autocast."""

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_only

from predictors.network import Standardised
from predictors.training.trainer import Batches, TrainConfig, trained


class Linear(Standardised):
    def __init__(self):
        super().__init__(3)
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, features):
        return self.layer(features)


def history(logger=None):
    features = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    rows = Batches(features, features.sum(1, keepdim=True))
    config = TrainConfig(epochs=3, batch_size=16)
    return trained(
        Linear, config, lambda head, batch: ((head(batch[0]) - batch[1]) ** 2).mean(), rows, rows, logger
    ).history


RANKS = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "nowhere", "MASTER_PORT": "1"}
SURROUNDINGS = {
    "SLURM, one task of several nodes": {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NAME": "night",
        "SLURM_NTASKS": "8",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_PROCID": "5",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
    },
    "torchrun": RANKS | {"TORCHELASTIC_RUN_ID": "x", "GROUP_RANK": "0"},
    "Kubeflow": RANKS | {"KUBERNETES_PORT": "tcp://nowhere"},
    "LSF": {
        "LSB_JOBID": "1",
        "LSB_DJOB_RANKFILE": "nowhere",
        "JSM_NAMESPACE_LOCAL_RANK": "1",
        "JSM_NAMESPACE_SIZE": "2",
    },
    "Lightning": {"PL_TRAINER_DEVICES": "4", "PL_TRAINER_FAST_DEV_RUN": "1", "PL_TRAINER_PRECISION": "bf16"},
}


@pytest.mark.parametrize("named", SURROUNDINGS)
def test_variables_of_clusters_and_lightning_decide_nothing(named, monkeypatch):
    before = history()
    for name, value in SURROUNDINGS[named].items():
        monkeypatch.setenv(name, value)
    assert history() == before and len(before) == 3


def test_curves_are_logged_whatever_rank_the_process_was_given(monkeypatch, tmp_path):
    monkeypatch.setattr(rank_zero_only, "rank", 3)  # as Lightning reads it when it is imported
    history(CSVLogger(tmp_path, "", ""))
    assert "val_loss" in (tmp_path / "metrics.csv").read_text()
    assert rank_zero_only.rank == 3, "which other training of the process goes on with"


def test_training_is_not_rounded_by_autocast():
    before = history()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert history() == before
