"""Hugging Face's BERT and GPT-2, initialised from small configurations, with their dropout on."""

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

import perfsuite

VOCABULARY, LENGTH = 128, 16
TOKENS = torch.randint(VOCABULARY, (256, LENGTH), generator=torch.Generator().manual_seed(0))


class Logits(nn.Module):
    """Returns the logits of a model that returns more."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(input_ids=tokens).logits


def build_bert():
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=LENGTH,
        num_labels=4,
    )
    return Logits(BertForSequenceClassification(config))


def build_gpt2():
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, n_positions=LENGTH, use_cache=False
    )
    return Logits(GPT2LMHeadModel(config))


def next_token_loss(logits, tokens):
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def workload(name, build_model, targets, loss):
    return perfsuite.Workload(
        name=name,
        build_model=build_model,
        build_dataset=lambda split: torch.utils.data.TensorDataset(TOKENS, targets),
        loss=loss,
        build_optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, eps=1e-6),
        micro_batch_size=8,
    )


bert = workload("bert", build_bert, TOKENS[:, 0] % 4, nn.functional.cross_entropy)
gpt2 = workload("gpt2", build_gpt2, TOKENS, next_token_loss)
