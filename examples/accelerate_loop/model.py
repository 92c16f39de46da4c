"""A small BERT that reads an image as a text of 64 letters, one for each shade of grey."""

from transformers import BertConfig, BertForSequenceClassification


def build_model():
    config = BertConfig(
        vocab_size=17,
        max_position_embeddings=64,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        num_labels=10,
    )
    return BertForSequenceClassification(config)
