"""A module whose tensors torch or its user moves elsewhere still computes with, and gives, what the mesh averages."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from mdl.config import TrainingSettings
from mdl.errors import ConfigError
from mdl.learning.flat import FlatModel
from mdl.learning.models import build_model
from mdl.learning.training import LocalTrainer

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here")


def _model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(8, 8), nn.Linear(8, 2))


def _state(module: nn.Module) -> np.ndarray:
    """What the module itself holds, tensor by tensor."""
    floats = [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]
    return np.concatenate([tensor.detach().cpu().numpy().ravel() for tensor in floats])


def _to_double_and_back(m):
    m.double()
    m.float()


def _assign_state(m):
    m.load_state_dict(copy.deepcopy(m.state_dict()), assign=True)


def _assign_data(m):
    for p in m.parameters():
        p.data = p.data.clone()


def _replace_parameter(m):
    m[3].weight = nn.Parameter(torch.full((8, 8), 0.5))


def _replace_buffer(m):
    m[1].running_mean = m[1].running_mean + 1


def _swap(m):
    m[3].weight.data = m[3].weight.data.t()
    m[1].weight.data, m[1].bias.data = m[1].bias.data, m[1].weight.data


def _share(m):
    m.share_memory()


def _share_one(m):
    m[3].weight.share_memory_()


def _channels_first(m):
    m[0].weight.data = m[0].weight.data.permute(2, 1, 0).contiguous().permute(2, 1, 0)


def _inference(m):
    with torch.inference_mode():
        m[1].running_mean = m[1].running_mean * 1
        m[3].weight.data = m[3].weight.data + 0


def _round_trip(m):
    m.to("meta")
    m.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in [*m.parameters(), *m.buffers()]:
            tensor.zero_()


def _to_gpu(m):
    m.to("cuda")


MOVES = [
    _to_double_and_back,
    _assign_state,
    _assign_data,
    _replace_parameter,
    _replace_buffer,
    _swap,
    _share,
    _share_one,
    _channels_first,
    _inference,
    _round_trip,
    pytest.param(_to_gpu, marks=needs_gpu),
]


@pytest.mark.parametrize("move", MOVES)
def test_what_a_moved_tensor_holds_is_gathered_and_what_is_loaded_reaches_it(move):
    flat = FlatModel(_model())
    move(flat.module)
    with torch.no_grad():
        for number, p in enumerate(flat.module.parameters()):
            p.add_(number)  # a training step, after the move
    expected = _state(flat.module)
    assert np.array_equal(flat.gather(), expected)
    assert np.array_equal(_state(flat.module), expected)
    flat.load(np.arange(flat.size, dtype=np.float32))
    assert _state(flat.module).tolist() == list(range(flat.size))
    assert flat.gather().tolist() == list(range(flat.size))


@pytest.mark.parametrize("move", MOVES)
def test_a_load_reaches_a_tensor_that_was_moved_and_never_gathered(move):
    flat = FlatModel(_model())
    move(flat.module)
    flat.load(np.arange(flat.size, dtype=np.float32))
    assert _state(flat.module).tolist() == list(range(flat.size))


@pytest.mark.parametrize("move", [_to_double_and_back, _assign_data, _share, pytest.param(_to_gpu, marks=needs_gpu)])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_the_users_optimizer_goes_on_after_a_move(move, kind):
    flat = FlatModel(_model())
    optimizer = kind(flat.module.parameters(), lr=0.1)
    x = torch.randn(4, 2, 4, generator=torch.Generator().manual_seed(2))
    for moves in (False, True, False):
        before = flat.gather().copy()
        if moves:
            move(flat.module)
        optimizer.zero_grad()
        flat.module(x.to(next(flat.module.parameters()).device)).square().sum().backward()
        optimizer.step()
        assert (flat.gather() != before).sum() > 60
    assert np.array_equal(flat.gather(), _state(flat.module))


def _reshape(m):
    m[3].weight.data = torch.zeros(4, 8)


def _add(m):
    m[3].lora = nn.Linear(8, 2)


def _drop(m):
    m[3].register_parameter("bias", None)


def _rename(m):
    parametrizations.weight_norm(m[3])


def _prune(m):
    prune.l1_unstructured(m[3], "weight", amount=0.5)


def _tie_data(m):
    m[1].bias.data = m[1].weight.data


def _overlap(m):
    memory = torch.zeros(12)
    m[1].bias.data, m[1].weight.data = memory[0:8:2], memory[6:10]


def _expand(m):
    m[3].bias.data = torch.zeros(1).expand(8)


REFUSED = [
    (lambda m: m.half(), r"0\.weight is torch\.float16 since the model was handed over: use float32"),
    (lambda m: m[3].bfloat16(), r"3\.weight is torch\.bfloat16 since"),
    (lambda m: m.to(torch.complex64), r"0\.weight is torch\.complex64 since"),
    (lambda m: m.to("meta"), r"0\.weight is on the meta device since the model was handed over: it has no values"),
    (lambda m: m.to(torch.float64), r"0\.weight is torch\.float64 since"),
    (lambda m: setattr(m[3], "weight", nn.Parameter(torch.zeros(8, 8).to_sparse())), r"3\.weight is sparse_coo since"),
    (_reshape, r"3\.weight was \[8, 8\] when the model was handed over, it is \[4, 8\] now"),
    (_add, r"3\.lora\.weight is new since the model was handed over: add it before"),
    (_drop, r"3\.bias \[8\] is gone since the model was handed over$"),
    (_rename, r"3\.weight \[8, 8\] is gone since the model was handed over, 3\.parametrizations\.\S+ is new"),
    (_prune, r"3\.weight \[8, 8\] is gone since the model was handed over, 3\.weight_orig is new"),
    (_tie_data, r"1\.(weight|bias) and 1\.(weight|bias) share memory"),
    (_overlap, r"1\.bias and 1\.weight share memory"),
    (_expand, r"elements of model tensor 3\.bias share memory"),
]


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature:UserWarning")  # torch, when asked for one
@pytest.mark.parametrize(("change", "said"), REFUSED)
def test_what_cannot_be_averaged_any_more_is_named_in_one_line(change, said):
    flat = FlatModel(_model())
    before = flat.values().copy()
    change(flat.module)
    for use in (flat.gather, lambda: flat.load(before + 1)):
        with pytest.raises(ConfigError, match=said) as caught:
            use()
        assert "\n" not in str(caught.value)
    assert np.array_equal(flat.values(), before)


def test_tied_parameters_that_came_apart_are_named():
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    module[1].weight = module[0].weight
    flat = FlatModel(module)
    module.load_state_dict(copy.deepcopy(module.state_dict()), assign=True)
    with pytest.raises(ConfigError, match=r"1\.weight was tied to 0\.weight when the model was handed over"):
        flat.gather()


def test_tied_parameters_move_together():
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    module[1].weight = module[0].weight
    flat = FlatModel(module)
    _to_double_and_back(module)
    flat.load(np.full(16, 3, np.float32))
    assert module[1].weight.sum().item() == 48


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")  # models still have it
@pytest.mark.parametrize(
    "build",
    [
        lambda: parametrizations.weight_norm(nn.Linear(3, 2)),
        lambda: parametrizations.spectral_norm(nn.Linear(3, 2)),
        lambda: nn.utils.weight_norm(nn.Linear(3, 2)),
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).to(memory_format=torch.channels_last),
    ],
)
def test_modules_of_every_kind_follow_a_move(build):
    flat = FlatModel(build())
    _to_double_and_back(flat.module)
    vector = np.arange(1, flat.size + 1, dtype=np.float32)
    flat.load(vector)
    assert np.array_equal(_state(flat.module), vector)
    assert np.array_equal(flat.gather(), vector)


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda m: torch.compile(m, backend="eager")])
def test_a_wrapped_module_has_the_schema_of_the_module_itself(wrap):
    plain, module = FlatModel(_model()), _model()
    flat = FlatModel(wrap(module))
    assert flat.schema == plain.schema
    _to_double_and_back(flat.module)
    flat.load(np.arange(flat.size, dtype=np.float32))
    assert _state(module).tolist() == list(range(flat.size))


def test_a_compiled_part_changes_no_name():
    module = _model()
    module[3] = torch.compile(module[3], backend="eager")
    assert FlatModel(module).schema_hash == FlatModel(_model()).schema_hash


def test_one_module_in_two_meshes_gives_both_what_it_holds():
    module = _model()
    one, other = FlatModel(module), FlatModel(module)
    one.load(np.full(one.size, 2, np.float32))
    assert np.array_equal(other.gather(), one.gather())
    other.load(np.full(one.size, 3, np.float32))
    assert set(one.gather()) == {3}


def test_a_model_handed_over_in_inference_mode_can_be_trained_outside():
    module = nn.Linear(3, 2)
    with torch.inference_mode():
        flat = FlatModel(module)
        flat.load(np.ones(flat.size, np.float32))
    module(torch.ones(1, 3)).sum().backward()
    torch.optim.SGD(module.parameters(), 1.0).step()
    assert set(flat.gather()) == {0}


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (torch.zeros(2, 2, device="meta"), "weight is on the meta device: it has no values"),
        (torch.zeros(2, 2).to_sparse(), "weight is sparse_coo: use a dense one"),
    ],
)
def test_tensors_without_plain_values_are_refused_by_name(tensor, said):
    module = nn.Linear(2, 2)
    module.weight = nn.Parameter(tensor)
    with pytest.raises(ConfigError, match=said):
        FlatModel(module)


class _Careless(nn.Module):
    """A user's model that does to itself, while it computes, what `act` says."""

    def __init__(self, act):
        super().__init__()
        self.line = nn.Linear(6, 2)
        self.register_buffer("seen", torch.zeros(1))
        self.act = act

    def forward(self, x):
        self.act(self)
        return self.line(x.flatten(1))


def _train(act):
    x = np.random.default_rng(3).normal(size=(8, 2, 3)).astype(np.float32)
    trainer = LocalTrainer(FlatModel(_Careless(act)), x, np.arange(8) % 2, TrainingSettings())
    start = trainer.model.values().copy()
    return trainer, trainer.train_round(start, 1).values


def test_a_buffer_that_a_model_assigns_anew_is_averaged_as_it_is():
    trainer, values = _train(lambda m: setattr(m, "seen", m.seen + 1))
    assert values[-1] == trainer.model.module.seen.item() == 1
    again = trainer.train_round(values * 0, 2).values
    assert again[-1] == 1


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (_to_double_and_back, r"line\.weight was moved or replaced in training"),
        (lambda m: m.zero_grad(), r"the gradient of model tensor line\.weight was replaced in training"),
    ],
)
def test_a_model_that_comes_loose_from_its_training_is_refused(act, said):
    with pytest.raises(ConfigError, match=said):
        _train(act)


def test_a_model_that_freezes_itself_when_training_begins_is_refused():
    class Freezing(_Careless):
        def train(self, mode=True):
            self.line.bias.requires_grad_(not mode)
            return super().train(mode)

    x = np.zeros((8, 2, 3), np.float32)
    trainer = LocalTrainer(FlatModel(Freezing(lambda m: None)), x, np.arange(8) % 2, TrainingSettings())
    with pytest.raises(ConfigError, match="frozen or unfrozen"):
        trainer.train_round(trainer.model.values().copy(), 1)


def test_a_vector_apart_from_the_module_follows_it_both_ways():
    """As that of a module on a GPU is: one memory there, one here."""
    flat = FlatModel(_model(), apart=True)
    start = flat.values().copy()
    assert np.array_equal(_state(flat.module), start)
    flat.load(np.arange(flat.size, dtype=np.float32))
    assert np.array_equal(_state(flat.module), np.arange(flat.size))
    flat.live().add_(1)
    assert np.array_equal(_state(flat.module), np.arange(1, flat.size + 1))
    assert not np.array_equal(flat.values(), _state(flat.module))
    assert np.array_equal(flat.gather(), _state(flat.module))
    _to_double_and_back(flat.module)
    next(flat.module.parameters()).data.fill_(5)
    assert np.array_equal(flat.gather(), _state(flat.module))
    flat.load(start)
    assert np.array_equal(_state(flat.module), start)


def test_training_beside_the_vector_is_the_same_training():
    x = np.random.default_rng(0).standard_normal((32, 3, 16), dtype=np.float32)
    results = []
    for apart in (False, True):
        flat = FlatModel(build_model("lenet", 3, 16, 2, 0), apart=apart)
        trainer = LocalTrainer(flat, x, np.arange(32) % 2, TrainingSettings())
        results.append(trainer.train_round(flat.values().copy(), 1).values.copy())
    assert np.array_equal(*results)
