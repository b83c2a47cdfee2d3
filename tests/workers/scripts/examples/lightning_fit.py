"""Training script of a Lightning module, with validation and the default loggers and checkpoints."""

import argparse

import pytorch_lightning as lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_model():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = make_model()

    def training_step(self, batch, _index):
        samples, labels = batch
        loss = nn.functional.cross_entropy(self.net(samples), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _index):
        samples, labels = batch
        self.log("accuracy", (self.net(samples).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    options = parser.parse_args()
    data = TensorDataset(torch.randn(512, 64), torch.randint(10, (512,)))
    loader = DataLoader(data, batch_size=options.batch_size)
    lightning.Trainer(max_epochs=2).fit(Classifier(), loader, loader)
