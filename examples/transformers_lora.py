"""Hugging Face with LoRA on a mesh: `python examples/transformers_lora.py DEVICE`, on two devices or more.

pip install 'mdl[transformers]' peft. The model is made from a configuration here, in place of one from the hub; only
its adapters travel. A is frozen, so that the mean of what devices learn is exact.
"""

import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from mdl.peers.integrations.transformers import MeshCallback

device = int(sys.argv[1]) if sys.argv[1:2] and sys.argv[1].isdigit() else 1
torch.manual_seed(0)  # the base and A must be the same on all devices
base = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=2))
lora = LoraConfig(r=8, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)
model = get_peft_model(base, lora)
for name, parameter in model.named_parameters():
    parameter.requires_grad_("lora_B" in name)
start = torch.randint(32, (128, 1), generator=torch.Generator().manual_seed(device))
tokens = (start + 3 * torch.arange(16)) % 32  # every text counts in threes
mesh = MeshCallback(steps=16, rounds=4, name=f"lora-{device}", loopback="--loopback" in sys.argv)
trainer = Trainer(
    model=model,
    train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
    callbacks=[mesh],
    args=TrainingArguments("lora-out", max_steps=1000, per_device_train_batch_size=16, learning_rate=0.02,
                           logging_steps=8, report_to=[], disable_tqdm=True, use_cpu=True, save_strategy="no"),
)  # fmt: skip
texts = (torch.arange(32)[:, None] + 3 * torch.arange(16)) % 32
with torch.no_grad():
    before = model.eval()(input_ids=texts, labels=texts).loss.exp()
trainer.train()
with torch.no_grad():
    after = model.eval()(input_ids=texts, labels=texts).loss.exp()
trained, whole = (sum(p.numel() for p in model.parameters() if p.requires_grad or every) for every in (False, True))
print(f"perplexity {before:.2f} -> {after:.2f}; {trained:,} of {whole:,} values are sent")
