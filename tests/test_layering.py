"""Imports point one way, decisions are pure, and a peer loads nothing it does not need."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# A folder imports only what stands left of it.
LAYERS = ("mdl", "transport", "sim", "scheduler", "peers")
# What people import and start: it may name every folder, and loads each late.
FACE = ("mdl/__init__.py", "mdl/__main__.py", "mdl/gym.py")
# And, inside each, only from folders that stand left of its own; a large module may stand for a folder.
INSIDE = {
    "mdl": ("devices", "defence", "protocol", "data", "learning", "files"),
    "transport": ("trust", "wire", "discovery", "links"),
    "scheduler": ("policies", "paper", "study", "rounds", "training", "explain"),
    "peers": (
        *("roles", "edge", "view", "ownership", "sharing", "loops", "integrations", "web", "command"),
        *("cloud", "colla", "dccl", "deeptype", "use", "launch", "trials", "service", "doctor", "cli"),
    ),
    "peers/roles": ("membership", "trainer", "agent"),
}
# These do not know each other, or only what a third one has for both.
APART = (
    *(("sim/mesh", "sim/timing"), ("sim/mesh", "sim/trust"), ("sim/trust.py", "sim/timing")),
    *(("sim/timing", "sim/mesh"), ("sim/timing", "sim/trust"), ("scheduler/policies", "sim")),
    *(("sim/plans", "sim/mesh"), ("sim/plans", "sim/trust"), ("sim/plans", "sim/timing")),
)
# What decides: no clock, no chance, no device.
PURE = (
    "mdl/defence",
    "mdl/protocol",
    "mdl/devices",
    "mdl/learning",
    "transport/wire",
    "sim",
    "scheduler/policies",
    "scheduler/paper",
    "scheduler/given.py",
    "scheduler/study",
    "scheduler/rounds",
    "scheduler/training",
    "peers/roles",
    # Each slice holds a paper: its model and its machine decide, its edge meets the runtime, its commands print.
    "peers/cloud/machine.py",
    "peers/cloud/machine.py",
    "peers/colla/machine.py",
    "peers/colla/model",
    "peers/dccl/machine.py",
    "peers/dccl/model",
    "peers/deeptype/model",
)
IMPURE = {"time", "random", "asyncio", "threading", "socket", "zmq", "zeroconf", "psutil", "os", "subprocess"}
# Modules of the scheduler that train a policy may import these, and no peer imports those modules.
LEARNING = {"gymnasium", "stable_baselines3"}
# Where roles and drivers meet: the composition root, and plans that machines play.
MEETING_POINTS = ("peers/edge/node.py", "peers/trials/")


def _modules(folder: str) -> list[Path]:
    """Modules below a folder, or one file; those of mdl/ without the face and the links to the other four folders."""
    place = ROOT / folder
    paths = [place] if place.suffix == ".py" else place.rglob("*.py")
    found = (path.relative_to(ROOT) for path in paths)
    linked = tuple(f"mdl/{name}/" for name in LAYERS[1:])
    return sorted(ROOT / path for path in found if str(path) not in FACE and not str(path).startswith(linked))


def _in_house(name: str) -> str:
    """Return the name by the path: of `mdl.peers.api`, which is peers/api.py, without its first part."""
    linked = f"{name}.".startswith(tuple(f"mdl.{folder}." for folder in LAYERS[1:]))
    return name.removeprefix("mdl.") if linked else name


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def _imports(path: Path, for_types: bool = False) -> tuple[str, ...]:
    """Names, as the folders give them, of what a module imports, also inside functions; those for types never run."""
    return tuple(_imported(_tree(path), path, for_types))


def _imported(tree: ast.AST, path: Path, for_types: bool) -> Iterator[str]:
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (_in_house(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import by the full name, so that the direction can be seen"
            yield _in_house(node.module or "")
            yield from (_in_house(f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not for_types:
            continue
        pending += ast.iter_child_nodes(node)


def _tops(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in _imports(path)}


@pytest.mark.parametrize("folder", LAYERS)
def test_a_folder_imports_only_what_stands_left_of_it(folder: str) -> None:
    forbidden = set(LAYERS[LAYERS.index(folder) + 1 :])
    for path in _modules(folder):
        assert not _tops(path) & forbidden, f"{path.relative_to(ROOT)} imports {_tops(path) & forbidden}"


@pytest.mark.parametrize("folder", INSIDE)
def test_a_folder_inside_imports_only_what_stands_left_of_it(folder: str) -> None:
    order, inside = INSIDE[folder], folder.replace("/", ".")
    folders = [path.name for path in (ROOT / folder).iterdir() if path.is_dir()]
    alone = {name for name in order if (ROOT / folder / f"{name}.py").is_file()}
    assert set(order) - alone == {name for name in folders if _modules(f"{folder}/{name}")}
    for place, name in enumerate(order):
        forbidden = tuple(f"{inside}.{other}." for other in order[place + 1 :])
        for path in _modules(f"{folder}/{name}.py" if name in alone else f"{folder}/{name}"):
            assert not (wrong := [each for each in _imports(path) if each.startswith(forbidden)]), (path, wrong)


@pytest.mark.parametrize(("folder", "unknown"), APART)
def test_folders_that_do_not_know_each_other(folder: str, unknown: str) -> None:
    for path in _modules(folder):
        assert not [name for name in _imports(path) if name.startswith(unknown.replace("/", ".") + ".")], path


def test_there_is_no_circle_not_even_for_the_type_checker() -> None:
    names = {_name_of(path): path for folder in LAYERS for path in _modules(folder)}
    wanted = {name: {_module_of(each, names) for each in _imports(path, True)} for name, path in names.items()}
    order = graphlib.TopologicalSorter({name: others - {name, ""} for name, others in wanted.items()})
    order.prepare()  # raises CycleError, which names the circle


def _name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _module_of(name: str, known: Collection[str]) -> str:
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


@pytest.mark.parametrize("folder", PURE)
def test_what_decides_knows_no_clock_no_chance_and_no_device(folder: str) -> None:
    for path in _modules(folder):
        assert not _tops(path) & IMPURE, path


@pytest.mark.parametrize("folder", LAYERS)
def test_nothing_is_ever_unpickled(folder: str) -> None:
    unsafe = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    for path in _modules(folder):
        assert not _tops(path) & unsafe, path
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
                safe = node.arg == "weights_only"
                assert isinstance(node.value, ast.Constant), f"{path}:{node.value.lineno}"
                assert node.value.value is safe, f"{path}:{node.value.lineno}"


# The only module that imports what a text names, and who may ask it to: they hold the user's own words.
IMPORTS_BY_NAME = "mdl/own.py"
HEARS_THE_USER = {
    "peers/launch/baselines.py",
    "peers/cli/main.py",
    "peers/command/options.py",
    "peers/cli/data.py",
    "peers/cli/use.py",
    "peers/cli/schedule.py",
    "peers/cli/sim.py",
    "peers/colla/edge.py",
    "peers/edge/device.py",
    "peers/edge/share.py",
    "peers/launch/up.py",
}
_RUNS_WHAT_IT_IS_TOLD = {"import_module", "__import__", "exec", "eval", "compile", "run_module", "run_path"}
_FINDS_BY_NAME = {"resolve_name", "locate", "spec_from_file_location", "load_module", "exec_module", "EntryPoint"}


def _called(node: ast.Call) -> str:
    function = node.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


@pytest.mark.parametrize("folder", LAYERS)
def test_one_module_imports_what_a_text_names(folder: str) -> None:
    for path in _modules(folder):
        name = str(path.relative_to(ROOT))
        if name == IMPORTS_BY_NAME:
            continue
        for node in ast.walk(_tree(path)):
            if not isinstance(node, ast.Call):
                continue
            called, where = _called(node), f"{name}:{node.lineno}"
            # re.compile and the like are methods of something else than a module that runs code.
            is_method = isinstance(node.func, ast.Attribute) and called in ("compile", "eval", "exec")
            if called in _RUNS_WHAT_IT_IS_TOLD and not is_method:
                assert called == "import_module", where
                assert all(isinstance(given, ast.Constant) for given in node.args), where
            assert called not in _FINDS_BY_NAME, where
            # An attribute of a module that was imported by name is what `module:function` is.
            if called == "getattr" and isinstance(node.args[0], ast.Call) and _called(node.args[0]) == "import_module":
                assert name == "peers/__init__.py", where


@pytest.mark.parametrize("folder", LAYERS)
def test_only_who_hears_the_user_may_have_a_name_imported(folder: str) -> None:
    for path in _modules(folder):
        taken = {name for name in _imports(path) if name.startswith("mdl.own")}
        if str(path.relative_to(ROOT)) not in HEARS_THE_USER:
            assert taken in (set(), {"mdl.own", "mdl.own.Own"}), path


# What these write is public, or a picture that the user asked for.
WRITES_IN_THE_OPEN = {"transport/download.py", "peers/cli/data.py", "scheduler/explain/draw_chart.py"}


@pytest.mark.parametrize("folder", LAYERS)
def test_one_module_makes_files_and_folders(folder: str) -> None:
    """So that each is for its owner alone, from the moment it exists."""
    for path in _modules(folder):
        name = str(path.relative_to(ROOT))
        if name == "mdl/writing.py" or name in WRITES_IN_THE_OPEN:
            continue
        for node in ast.walk(_tree(path)):
            if not isinstance(node, ast.Call):
                continue
            called, where = _called(node), f"{name}:{node.lineno}"
            is_method = isinstance(node.func, ast.Attribute)
            assert called not in ("mkdir", "makedirs", "touch", "copyfile", "save_file", "NamedTemporaryFile"), where
            assert not is_method or called not in ("write_text", "write_bytes"), where
            if called == "open" and not ast.unparse(node.func).startswith(("gzip.", "os.")):
                modes = [given.value for given in node.args if isinstance(given, ast.Constant)]
                assert not any(set("wax+") & set(str(how)) for how in modes), where


# Who may touch a person's text, words and layers: none of them sends anything.
PERSONAL = "peers/deeptype/"
# Which commands there are.
COMMANDS = "peers/cli/groups.py"
# The one place where a person's model and a mesh meet. It says what it hands over; it sends nothing itself.
PERSONAL_MEETS_MESH = "peers/deeptype/mesh_commands.py"
SENDS = ("transport.", "zmq", "zeroconf", "socket", "mdl.protocol.", "peers.roles.", "peers.edge.node")


@pytest.mark.parametrize("folder", LAYERS)
def test_what_is_personal_never_meets_what_sends(folder: str) -> None:
    """A mesh and a cloud cannot be told a personal word: no module knows both."""
    for path in _modules(folder):
        names = set(_imports(path))
        if str(path.relative_to(ROOT)) == PERSONAL_MEETS_MESH:
            assert not [name for name in names if name.startswith(SENDS)], path
        elif str(path.relative_to(ROOT)).startswith(PERSONAL):
            assert not [name for name in names if name.startswith((*SENDS, "peers.api"))], path
        elif str(path.relative_to(ROOT)) != COMMANDS:
            assert not [name for name in names if name.startswith("peers.deeptype")], path


def test_a_role_knows_no_driver_and_a_driver_no_role() -> None:
    """Roles may be bounded as links are: that much of transport/ decides, too."""
    shared = ("transport.wire.places", "transport.limits")
    for path in _modules("peers"):
        name, names = str(path.relative_to(ROOT)), set(_imports(path))
        if name.startswith("peers/roles/"):
            assert not [
                each for each in names if each.startswith(("transport.", "sim.")) and not each.startswith(shared)
            ], path
        knows_driver = any(
            each.startswith(("transport.runtime", "transport.links", "sim.mesh.driver")) for each in names
        )
        knows_role = any(each.startswith(("peers.roles.agent.agent", "peers.roles.trainer.trainer")) for each in names)
        if knows_driver and knows_role:
            assert name.startswith(MEETING_POINTS), path


def test_what_a_peer_loads_never_needs_the_learning_libraries() -> None:
    learning = {path for path in _modules("scheduler") if _tops(path) & LEARNING}
    names = {_name_of(path) for path in learning}
    assert names
    for folder in LAYERS:
        for path in _modules(folder):
            if path not in learning:
                assert not _tops(path) & LEARNING, path
                if "cli" not in path.relative_to(ROOT).parts:
                    assert not set(_imports(path)) & names, path


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("mdl.peers.roles.agent.agent", {"torch", "zmq", "zeroconf", "psutil", "typer"}),
        ("mdl.peers.roles.trainer.trainer", {"torch", "zmq", "zeroconf", "psutil", "typer"}),
        ("mdl.peers.edge.node", {"torch"}),
        ("mdl.sim.mesh.driver", {"torch", "zmq", "zeroconf", "psutil"}),
        ("mdl.config", {"torch", "numpy", "zmq"}),
        ("mdl.peers.cli.main", {"torch", "numpy", "zmq", "zeroconf"}),
    ],
)
def test_importing_a_module_loads_nothing_heavy(module: str, heavy: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


# What `mdl peer`, `mdl agent`, `mdl cloud`, `mdl learn` and `mdl.join` run.
PEERS = (
    "peers.edge.node",
    "peers.edge.device",
    "peers.colla.edge",
    "peers.api",
    "peers.loops",
)
# Re-learning the schedule plays simulated rounds: in a process of its own, when it really trains, and only there.
OWN_PROCESS = "scheduler.training.relearn"


def test_a_peer_runs_without_the_simulator() -> None:
    code = f"""
import sys, {", ".join(f"mdl.{name}" for name in PEERS)}
from mdl.scheduler.policies.registry import POLICIES, make_policy
for name in POLICIES:
    make_policy(name)
print(*(name for name in sys.modules if name.startswith("mdl.sim")))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_nothing_that_a_peer_could_still_import_is_of_the_simulator() -> None:
    """Also inside functions."""
    names = {_name_of(path): path for folder in LAYERS for path in _modules(folder)}
    pending, seen = list(PEERS), {OWN_PROCESS}
    while pending:
        name = pending.pop()
        assert not name.startswith("sim."), name
        if name not in seen:
            seen.add(name)
            pending += [_module_of(each, names) for each in _imports(names[name]) if _module_of(each, names)]
    assert "peers.edge.relearner" in seen


@pytest.mark.parametrize("words", [["--help"], ["peer", "--help"]])
def test_help_is_printed_without_loading_anything_heavy(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "mdl", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    loaded = {name.partition(".")[0] for name in modules}
    assert ("typer" in loaded) == (words != ["--help"]), "that of all commands is kept"
    assert not loaded & {"torch", "numpy", "zmq", "zeroconf", "rich", "asyncio"}
    assert "logging.handlers" not in modules


def test_no_benchmark_hides_a_package() -> None:
    """A script's own folder comes first where it looks for what it imports."""
    assert not {path.stem for path in (ROOT / "benchmarks").rglob("*.py")} & set(LAYERS)
