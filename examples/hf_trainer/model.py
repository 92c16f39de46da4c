"""A small vision transformer; its low-rank adapters and its head are trained."""

from peft import LoraConfig, get_peft_model
from transformers import ViTConfig, ViTForImageClassification


def build_model():
    config = ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        hidden_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=192,
        num_labels=10,
    )
    adapters = LoraConfig(r=8, target_modules="all-linear", modules_to_save=["classifier"])
    return get_peft_model(ViTForImageClassification(config), adapters)
