"""Each example on two devices, as it stands: what it says at its end, which is the same on both."""

import importlib.util
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mdl.transport.trust.keys import new_join_code
from tests.integration import product

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def home(tmp_path):
    home = product.Home(tmp_path / "home", tmp_path / "cache")
    home.environment["MDL_CODE"] = new_join_code("examples")
    yield home
    home.close()


def _end(home, name, before=(), behind=()):
    """The lines that two devices say; before, behind: arguments beside the device's number."""
    script = EXAMPLES / name
    loops = [home.start_python(script, *before, device, *behind, "--loopback", fresh=True) for device in (1, 2)]
    assert [loop.end(240) for loop in loops] == [0, 0], [loop.told[-2000:] for loop in loops]
    return [loop.said.splitlines() for loop in loops]


def _needs(*modules):
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(absent), reason=f"not installed here: {', '.join(absent)}")


def _percent(line):
    return float(re.search(r"([\d.]+)% of", line).group(1))


def write_recording(path, seed):
    """Five minutes at 50 Hz of three activities, eight seconds each in turn."""
    dice = np.random.default_rng(seed)
    time = np.arange(15_000) / 50
    kind = (time // 8).astype(int) % 3
    swing = np.sin(2 * np.pi * np.choose(kind, (0.0, 1.8, 3.0)) * time)[:, None] * np.choose(kind, (0, 2, 6))[:, None]
    values = swing * (1.0, 0.5, 0.8) + (0, 0, 9.81) + dice.normal(0, 0.3, (len(time), 3))
    names = np.array(["sit", "walk", "run"])[kind]
    rows = (f"{t:.2f},{x:.3f},{y:.3f},{z:.3f},{name}" for t, (x, y, z), name in zip(time, values, names, strict=True))
    path.write_text("time,ax,ay,az,activity\n" + "\n".join(rows) + "\n")


@pytest.mark.slow
def test_an_image_model_with_accumulation_and_a_schedule(home):
    one, other = _end(home, "image_model.py")
    assert one == other
    assert one[-1].endswith("of 300 new pictures after round 5")
    assert _percent(one[-1]) > 80


@pytest.mark.slow
@_needs("PIL")
def test_a_network_of_ones_own_for_pictures_in_folders(home):
    drawn = home.start_python(EXAMPLES / "image_folder.py", "pictures", fresh=True)
    assert drawn.end(240) == 0, drawn.told[-2000:]
    assert drawn.said.strip() == "1440 pictures below pictures"
    (home.folder / "image_folder.py").write_text((EXAMPLES / "image_folder.py").read_text())
    model = ["--model", "image_folder:small_cnn"]
    data = ["--data", "images:pictures?subject=path:2"]
    run = home.run("up", "-n", 3, *data, *model, "--out", "run", "--json")
    assert run.result()["accuracy"] > 0.8
    told = home.run("predict", "run", "pictures/sitting/person-00", *model, "--json").result()
    assert told["windows"] == 10
    assert told["windows_by_class"]["sitting"] > 6


@pytest.mark.slow
def test_a_csv_of_ones_own(home):
    for device in (1, 2):
        write_recording(home.folder / f"{device}.csv", device)
    script = EXAMPLES / "own_csv.py"
    loops = [home.start_python(script, f"{device}.csv", device, "--loopback", fresh=True) for device in (1, 2)]
    assert [loop.end(240) for loop in loops] == [0, 0], [loop.told[-2000:] for loop in loops]
    for loop in loops:
        line = loop.said.splitlines()[-1]
        assert re.fullmatch(r"run, sit, walk: \S+% of \d+ windows of the last part after round 5", line)
        assert _percent(line) > 80


@pytest.mark.slow
def test_going_on_from_a_model_that_is_there(home):
    torch.manual_seed(1)
    base = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    save_file(base.state_dict(), home.folder / "loop-1.safetensors")
    one, other = _end(home, "from_pretrained.py", before=["loop-1.safetensors"])
    assert one == other
    assert one[-1].endswith("of 500 after round 5; 51 of 227 values sent")
    assert _percent(one[-1]) > 60  # chance is 38


@pytest.mark.slow
def test_adapters_of_a_language_model(home):
    texts = home.folder / "texts.zip"
    with zipfile.ZipFile(texts, "w") as file:
        for number in range(20):
            file.writestr(f"news/sport/{number}.txt", f"the match of day {number} ended with a goal. " * 40)
    one, other = _end(home, "lora_text.py", behind=[2, texts, "--rounds", 2])
    assert one[0] == other[0]
    before, after = (float(number) for number in re.findall(r"\d+\.\d{4}", one[0]))
    assert after < before / 1.2
    assert re.fullmatch(r"[\d,]+ bytes of adapters, [\d,]+ of the model; sent a round: [\d,]+", one[1])


@_needs("lightning")
def test_lightning(home):
    one, other = _end(home, "lightning_mesh.py")
    assert one[-1] == other[-1]
    assert one[-1].endswith("of 500 after 80 steps")
    assert _percent(one[-1]) > 90


@_needs("transformers", "accelerate", "peft")
def test_hugging_face_with_adapters(home):
    one, other = _end(home, "transformers_lora.py")
    assert one[-1] == other[-1]
    before, after = (float(number) for number in re.match(r"perplexity ([\d.]+) -> ([\d.]+);", one[-1]).groups())
    assert after < before / 1.2
