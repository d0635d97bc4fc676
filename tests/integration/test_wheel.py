"""The wheel in a bare environment, run in a folder whose own `scheduler/`, `peers/`, ... would hide mdl's."""

import re
import subprocess
import sys
import tarfile
import urllib.request
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import numpy
import pytest

from deploy.dist import NOTES, SUMS, cut_notes, release
from mdl.transport.trust.keys import new_join_code
from tests.integration import product

ROOT = Path(__file__).resolve().parents[2]
CODE = new_join_code("theirs")
# What a user's own project may be called, and what would end a program that imported it.
THEIRS = ("scheduler/__init__.py", "transport/__init__.py", "peers/__init__.py", "sim.py", "matplotlib.py")
LOOP = """
import sys, torch, mdl
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
with mdl.join(model=model, name=sys.argv[1], loopback=True, rounds=2) as mesh:
    for this in mesh:
        with torch.no_grad():
            model.weight += 1.0
print(mesh.round_id, model.weight.sum().item())
"""
GYM = """
import gymnasium, mdl.gym
env = gymnasium.make("mdl/Chain-v0", n=(3, 4))
env.reset(seed=1)
print(type(env.unwrapped).__module__)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A release, as `make dist` makes it."""
    return release(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """A Python that has the wheel, and the libraries of this one without its mdl."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, str(built[0])], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(str(Path(numpy.__file__).parents[1]))
    return folder / "bin"


@pytest.fixture
def home(installed, tmp_path):
    home = product.Home(tmp_path, tmp_path / "cache", before=())
    home.preloaded = None
    for name in THEIRS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('this is mine')\n")
    del home.environment["PYTHONPATH"]
    yield home
    home.close()


def _start(home, *words, **variables):
    command = product.Command(tuple(map(str, words)), home, next(home._numbers), variables)
    home._started.append(command)
    return command


@pytest.mark.slow
def test_a_wheel_and_an_sdist_hold_one_name_and_all_that_belongs_to_it(built):
    wheel, sdist = built
    inside = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in inside if ".dist-info/" not in name} == {"mdl"}
    for needed in (
        *("mdl/py.typed", "mdl/__main__.py", "mdl/transport/runtime.py", "mdl/peers/web/page/index.html"),
        *("mdl/sim/mesh/driver.py", "mdl/peers/web/page/app.js"),
    ):
        assert needed in inside
    assert [name for name in inside if re.fullmatch(r"mdl/scheduler/data/.*\.safetensors", name)]
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "mdl").rglob("*.py")}
    for folder in ("transport", "scheduler", "peers", "sim"):
        modules |= {f"mdl/{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*.py")}
    assert modules <= set(inside)
    (metadata,) = (name for name in inside if name.endswith(".dist-info/METADATA"))
    told = message_from_bytes(zipfile.ZipFile(wheel).read(metadata))
    assert (told["Name"], told["Version"], told["License-Expression"]) == ("mdl", "0.1.0", "Apache-2.0")
    assert told["Description-Content-Type"] == "text/markdown"
    assert told["Requires-Python"] == ">=3.11"
    assert told.get_payload()
    with tarfile.open(sdist) as tar:
        files = {name.partition("/")[2] for name in tar.getnames()}
        assert not [each.name for each in tar.getmembers() if each.issym() or each.islnk()]
    assert {"pyproject.toml", "README.md", "LICENSE", "mdl/peers/api.py", "mdl/transport/runtime.py"} <= files


@pytest.mark.slow
def test_programs_run_beside_what_a_user_calls_as_mdl_calls_its_folders(home, installed):
    (home.folder / "loop.py").write_text(LOOP)
    loops = [_start(home, installed / "python", "loop.py", name, MDL_CODE=CODE) for name in ("left", "right")]
    (home.folder / "env.py").write_text(GYM)
    env = _start(home, installed / "python", "env.py")
    for loop in loops:
        assert loop.end() == 0, loop.told
        assert loop.said.split() == ["2", str(float(loop.said.split()[1]))]
    assert loops[0].said == loops[1].said
    assert env.end() == 0, env.told
    assert env.said.strip() == "mdl.scheduler.training.env"


@pytest.mark.slow
def test_a_mesh_and_its_page_run_there(home, installed):
    options = ("-n", "2", "--data", product.SMALL, "--epochs", "1", "--rounds-per-epoch", "2", "--json")
    for start in ([installed / "mdl"], [installed / "python", "-m", "mdl"]):
        if start[1:]:  # what a program starts with -m looks where it stands first, for the libraries' imports too
            (home.folder / "matplotlib.py").unlink()
        mesh = _start(home, *start, "up", *options)
        assert mesh.end() == 0, mesh.told
        assert (mesh.result()["peers"], mesh.result()["rounds"]) == (2, 2)
    page = _start(home, installed / "mdl", "web", "--code", CODE, "--loopback")
    assert product.until(lambda: "http://" in page.told + page.said), page.told
    host, token = re.search(r"(http://[^/]+)/\S*token=(\w+)", page.told + page.said).groups()
    wanted = urllib.request.Request(f"{host}/", headers={"Authorization": f"Bearer {token}"})
    assert b"<html" in urllib.request.urlopen(wanted, timeout=20).read()
    page.interrupt()


def test_a_release_has_checksums_that_fit_and_notes_of_its_version(built):
    folder = built[0].parent
    assert {file.name for file in folder.iterdir()} == {built[0].name, built[1].name, SUMS, NOTES}
    subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=folder, check=True, capture_output=True)
    assert (folder / SUMS).read_text().count("\n") == 2
    assert (folder / NOTES).read_text().startswith("# mdl 0.1.0\n\n")


def test_notes_end_where_the_version_before_begins():
    changelog = "# Changelog\n\n## [0.2.0] - a day\n\nNew.\n\n### Fixed\n\n- x\n\n## 0.1.0\n\nOld.\n"
    assert cut_notes(changelog, "0.2.0") == "# mdl 0.2.0\n\nNew.\n\n### Fixed\n\n- x\n"
    assert cut_notes(changelog, "0.1.0") == "# mdl 0.1.0\n\nOld.\n"
    for missing in ("0.1", "0.3.0"):
        with pytest.raises(SystemExit, match=f"no section ## {missing}"):
            cut_notes(changelog, missing)
