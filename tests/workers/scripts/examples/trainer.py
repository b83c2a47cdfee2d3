"""Training script of a tiny GPT-2 from a configuration, by the Trainer of transformers."""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

LENGTH, VOCABULARY = 32, 128


def make_model():
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=64,
            n_embd=64,
            n_layer=2,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        tokens = torch.randint(VOCABULARY, (LENGTH,))
        return {"input_ids": tokens, "labels": tokens.clone()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    options = parser.parse_args()
    arguments = TrainingArguments(
        output_dir="out", per_device_train_batch_size=options.batch_size, logging_steps=1, report_to=[]
    )
    Trainer(model=make_model(), args=arguments, train_dataset=Tokens()).train()
