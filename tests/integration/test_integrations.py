"""Trainers of others as members of a mesh, where they are: `pip install 'mdl[lightning,transformers]' peft`."""

import importlib.util

import pytest

from mdl.transport.trust.keys import new_join_code
from tests.integration import product

LIGHTNING = """
import hashlib, logging, sys, warnings
warnings.simplefilter("ignore")
import torch
import lightning.pytorch as pl
from mdl.peers.integrations.lightning import MeshCallback, MeshStrategy

device, way = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    def training_step(self, batch, number):
        return torch.nn.functional.cross_entropy(self.line(batch[0]), batch[1])
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

x = torch.randn(256, 6, generator=torch.Generator().manual_seed(device))
data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
done = []
options = dict(steps=4, rounds=3, name=f"l-{device}", loopback=True, progress=done.append)
how = {
    "callback": lambda: dict(callbacks=[MeshCallback(**options)]),
    "accumulate": lambda: dict(callbacks=[MeshCallback(**options)], accumulate_grad_batches=2),
    "strategy": lambda: dict(strategy=MeshStrategy(**options)),
}[way]()
module = Module()
trainer = pl.Trainer(max_epochs=50, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                     enable_model_summary=False, accelerator="cpu", **how)
trainer.fit(module, loader)
print([this.round_id for this in done], [this.samples for this in done], trainer.global_step)
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in module.parameters())).hexdigest())
"""
TRANSFORMERS = """
import hashlib, os, sys, warnings
warnings.simplefilter("ignore")
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from mdl.peers.integrations.transformers import MeshCallback

device = int(sys.argv[1])
torch.manual_seed(0)
base = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
model = get_peft_model(base, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
for name, parameter in model.named_parameters():
    parameter.requires_grad_("lora_B" in name)  # A stays: the mean of the products is the product of the means
frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
tokens = torch.randint(64, (64, 16), generator=torch.Generator().manual_seed(device))
done = []
callback = MeshCallback(steps=4, rounds=3, name=f"t-{device}", loopback=True, progress=done.append)
trainer = Trainer(
    model=model, train_dataset=[{"input_ids": row, "labels": row} for row in tokens], callbacks=[callback],
    args=TrainingArguments("out", max_steps=100, per_device_train_batch_size=8, logging_steps=1, report_to=[],
                           disable_tqdm=True, use_cpu=True, save_strategy="no", learning_rate=0.01),
)
trainer.train()
assert all(torch.equal(p, frozen[name]) for name, p in model.named_parameters() if name in frozen)
trained = [p for p in model.parameters() if p.requires_grad]
print([this.round_id for this in done], [this.samples for this in done], trainer.state.global_step)
print(all(this.loss > 0 for this in done), max(this.sent_bytes for this in done) < 40_000)
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in trained)).hexdigest())
"""


@pytest.fixture
def home(tmp_path):
    home = product.Home(tmp_path / "home", tmp_path / "cache")
    home.environment["MDL_CODE"] = new_join_code("loops")
    yield home
    home.close()


def _needs(*modules):
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(absent), reason=f"not installed here: {', '.join(absent)}")


def _run_two(home, script, *arguments):
    file = home.folder / "training.py"
    file.write_text(script)
    loops = [home.start_python(file, device, *arguments, fresh=True) for device in (1, 2)]
    assert [loop.end(240) for loop in loops] == [0, 0], [loop.told for loop in loops]
    return [[line for line in loop.said.splitlines() if not line.startswith("{")] for loop in loops]


@_needs("lightning")
@pytest.mark.parametrize("way", ["callback", "accumulate", "strategy"])
def test_lightning_trains_the_rounds_of_a_mesh(home, way):
    one, other = _run_two(home, LIGHTNING, way)
    samples = 128 if way == "accumulate" else 64
    assert one == other
    assert one[0] == f"[1, 2, 3] {[samples] * 3} 12"


@_needs("transformers", "accelerate", "peft")
def test_transformers_train_adapters_as_the_rounds_of_a_mesh(home):
    one, other = _run_two(home, TRANSFORMERS)
    assert one == other
    assert one[:2] == ["[1, 2, 3] [32, 32, 32] 12", "True True"]
