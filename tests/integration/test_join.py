"""An own PyTorch loop as a peer: the examples as they stand, and loops that end in every way a loop can end."""

import importlib.util
from pathlib import Path

import pytest

from transport.keys import new_join_code

HERE = Path(__file__).parent
spec = importlib.util.spec_from_file_location("mdl_product", HERE / "product.py")
product = importlib.util.module_from_spec(spec)
spec.loader.exec_module(product)

EXAMPLE = HERE.parents[1] / "examples" / "own_loop.py"
LOOP = """
import threading
import torch
import peers

model = torch.nn.Linear({inputs}, 2)
try:
    with peers.join(model=model, name="{name}", loopback=True) as mesh:
        for this in mesh:
            raise KeyError("in the middle")
finally:
    print([thread.name for thread in threading.enumerate() if thread.name == "mdl-member"])
"""


@pytest.fixture
def home(tmp_path):
    home = product.Home(tmp_path / "home", tmp_path / "cache")
    home.environment["MDL_CODE"] = new_join_code("loops")
    yield home
    home.close()


def test_the_example_trains_with_another_device_to_the_end(home):
    agent = home.start("agent", "--loopback", "--rounds", 3)
    loops = [home.start_python(EXAMPLE, device, "--loopback") for device in (1, 2)]
    assert [loop.end() for loop in loops] == [0, 0], [loop.told for loop in loops]
    assert agent.end() == 0
    for loop in loops:
        assert [line.split(":")[0] for line in loop.said.splitlines()] == ["round 1", "round 2", "round 3"]


def test_a_loop_ends_by_ctrl_c_or_by_a_refusal_and_leaves_nothing_running(home):
    home.start("agent", "--loopback", "--set", "round.min_peers=1")
    first = home.start_python(EXAMPLE, 1, "--loopback")
    assert product.until(lambda: "round 3" in first.said), first.told
    other = home.folder / "other.py"
    other.write_text(LOOP.format(inputs=7, name="other"))
    refused = home.start_python(other)
    assert refused.end() == 1
    assert "mdl.errors.ConfigError: your model (Linear, 16 values) differs from the mesh's (Sequential" in refused.told
    assert refused.said == "[]\n"
    assert first.interrupt() < 8
    assert first.code != 0
    assert first.complaint == "KeyboardInterrupt"


def test_an_error_in_the_loop_is_raised_and_the_node_ends(home):
    home.start("agent", "--loopback", "--set", "round.min_peers=1")
    broken = home.folder / "broken.py"
    broken.write_text(LOOP.format(inputs=10, name="broken"))
    loop = home.start_python(broken)
    assert loop.end() == 1
    assert loop.complaint == "KeyError: 'in the middle'"
    assert loop.said == "[]\n"
