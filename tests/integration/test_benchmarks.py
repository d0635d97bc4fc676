"""Benchmarks in a short form: that they run to their end and print what they promise, not what they measure.

Each takes seconds to half a minute here; those that train whole meshes are marked `long`, and one of each kind is not:
real processes, one process, simulated devices. What fits the device models runs whole in
tests/sim/timing/test_device_models.py.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.cloud_mesh import ARMS, describe_up
from benchmarks.compiled import split_structs
from benchmarks.links.places import parse_case
from benchmarks.next_place.counts import count_prior
from mdl.config import load_config
from mdl.peers.deeptype.model.model_file import save_next_word
from mdl.peers.deeptype.model.text import build_table
from mdl.peers.deeptype.train import read_sentences
from mdl.protocol.coding import CODINGS
from tests.integration import lan
from tests.peers.deeptype.model.examples import invent, small_model

ROOT = Path(__file__).resolve().parents[2]
# A busy machine takes many times the 3 to 12 s of an idle one.
_PATIENCE_S = 240.0

_MOTION = "motion?people=6&test_people=2&windows=20"


def _run(home: Path, *command: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home), "XDG_STATE_HOME": str(home)}
    environment["OMP_NUM_THREADS"] = "1"  # tests run beside it
    words = [sys.executable, "-m", "benchmarks", *map(str, command)]
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_PATIENCE_S)


def _last(run: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert run.returncode == 0, run.stderr[-2000:]
    told: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])["figures"]
    return told


def _kept(file: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(file.read_text())["figures"]
    return told


@pytest.mark.slow
def test_turnover_tells_the_phases_between_two_trainings(tmp_path: Path) -> None:
    short = ["--devices", 2, "--rounds", 5, "--data", "motion?people=6&windows=20"]
    (told,) = _last(_run(tmp_path, "turnover", *short))["milliseconds"].values()
    phases = [told[name][0] for name in ("decided", "applied", "opened", "begun")]
    assert min(phases) > 0.0
    assert told["first begun"][0] <= told["whole"][0] <= told["cycle"][0]


@pytest.mark.long
def test_memory_tells_what_each_device_took_in_each_round(tmp_path: Path) -> None:
    small = ["--peers", 2, 3, "--rounds", 4, "--values", 10_000]
    told = _last(_run(tmp_path, "memory", *small))
    assert told["values"] == 10_000
    assert [(mesh["peers"], mesh["rounds"]) for mesh in told["results"]] == [(2, 4), (3, 4)]
    for mesh in told["results"]:
        assert [len(each) for each in mesh["extra_deltas_by_peer_and_round"]] == [4] * mesh["peers"]
        assert mesh["until_applied_max"] <= mesh["extra_deltas_max"]
        assert mesh["round_s_median"] > 0.0


@pytest.mark.long
def test_a_fleet_of_devices_loses_nothing_with_a_cloud_that_is_killed_twice(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    rows = [f"u{user},i{(17 * user + at) % 220}" for user in range(16) for at in range(24)]
    log.write_text("\n".join(["user,item", *rows]))
    small = ["--data", f"csv:{log}?least=1", "--devices", 12, "--rounds", 3, "--patience", 120]
    told = _last(_run(tmp_path, "dccl_fleet", *small))
    assert told["by_round"] == {"1": 0, "2": 12, "3": 12, "4": 12}
    assert (told["taken"], told["lost"], told["counted_twice"], told["undone"]) == (36, 0, 0, 0)
    assert len(told["killed_at"]) == 2
    assert told["killed_at"][0]["version"] == 1


@pytest.mark.slow
def test_a_peer_that_cannot_be_measured_is_one_line(tmp_path: Path) -> None:
    run = _run(tmp_path, "memory", "--peers", 2, "--rounds", 3, "--values", -1)
    assert run.returncode == 4
    assert run.stderr.splitlines()[-1] == "memory: peer-0 ended with 1 and without a figure"


@pytest.mark.slow
def test_simulated_meshes_are_measured_by_size_in_both_exchanges(tmp_path: Path) -> None:
    told = _last(_run(tmp_path, "simscale", "--sizes", 2, 3, "--rounds", 2))
    rows = [(row["peers"], row["exchange"]) for row in told["results"]]
    assert rows == [(2, "chain"), (2, "shares"), (3, "chain"), (3, "shares")]
    assert all(row["messages_a_round"] > 0 for row in told["results"])
    assert told["without_a_figure"] == []


@pytest.mark.long
def test_what_re_learning_takes_is_told_beside_what_a_peer_takes_anyway(tmp_path: Path) -> None:
    told = _last(_run(tmp_path, "relearning", "--peers", 2, "--seconds", 1))
    off, on = told["results"]
    assert (off["relearn"], off["slots"], off["slot_rss_mb"]) == (False, 0, 0.0)
    assert (on["relearn"], on["slots"]) == (True, 1)
    assert 0.0 < on["slot_rss_mb"] < on["peer_rss_mb"]


@pytest.mark.slow
def test_parts_of_the_scheduler_benchmark_are_measured_written_and_drawn(tmp_path: Path) -> None:
    parts = ["cells", "energy", "dying", "fig10"]
    asked = [word for part in parts for word in ("--part", part)]
    small = ["--cell", "dynamic 5", "--count", 1, "--runs", 1, "--meshes", 1, "--policies", "greedy,tree,ring"]
    out = tmp_path / "scheduler.json"
    told = _last(_run(tmp_path, "chain_scheduler", *asked, *small, "--out", out))
    assert set(told) == set(parts)
    assert _kept(out) == told
    assert "<svg" in out.with_suffix(".svg").read_text()


@pytest.mark.slow
def test_an_accuracy_recipe_trains_a_mesh_in_one_process(tmp_path: Path) -> None:
    small = ["--data", "motion?people=4&windows=12", "--peers", 2, "--rounds", 1, "--seeds", 0, "--cache", tmp_path]
    told = _last(_run(tmp_path, "accuracy_recipe", *small))
    assert (told["peers"], told["rounds"], told["windows"]["train"]) == (2, 1, 48)


@pytest.mark.long
def test_bare_rounds_run_on_loopback(tmp_path: Path) -> None:
    small = ["--mbit", 0, "--megabytes", 0.1, "--sizes", 2, "--rounds", 4, "--runs", 1]
    told = _last(_run(tmp_path, "bare_round", *small))
    assert told["median_and_quartiles_s"]["N=2 ."]["total"][0] > 0.0


@pytest.mark.slow
def test_each_way_over_the_wire_is_measured(tmp_path: Path) -> None:
    told = _last(_run(tmp_path, "wire", "--megabytes", 0.01, 0.6, "--times", 3))
    for found in told["gigabytes_a_second"].values():
        assert list(found) == ["tcp", "zeromq", "curve", "hop", "segments"]
        assert all(0.0 < low <= median <= high for median, low, high in found.values())


@pytest.mark.long
def test_a_mesh_is_measured_beside_devices_alone_and_all_data_in_one_place(tmp_path: Path) -> None:
    small = ["--data", _MOTION, "--peers", 2, "--epochs", 1, "--seeds", 0]
    told = _last(_run(tmp_path, "accuracy", *small))
    assert {"accuracy", "accuracy_alone", "accuracy_central"} < told["median"].keys() < told["runs"][0].keys()


@pytest.mark.long
def test_a_mesh_with_a_cloud_is_measured_beside_one_without(tmp_path: Path) -> None:
    out = tmp_path / "cloud.json"
    small = ["--data", _MOTION, "--split", "subject", "--peers", 2, "--epochs", 1, "--donors", 2, "--seeds", 0]
    told = _last(_run(tmp_path, "cloud_mesh", *small, "--out", out))
    assert len(told["gain_points"]) == 1
    assert _kept(out) == told
    again = _last(_run(tmp_path, "cloud_mesh", *small, "--out", out))
    assert again == told, "what is there is not measured again"


def test_an_arm_that_hears_of_no_cycle_uploads_nothing_whatever_all_arms_are_told() -> None:
    given = {
        "peers": 4,
        "data": "motion",
        "split": "subject",
        "epochs": 1,
        "donors": 2,
        "set": ["cloud.upload_every=2"],
    }
    words = describe_up(argparse.Namespace(**given), 0, Path("out"), *ARMS["first"])
    settings = load_config(None, {}, [word for before, word in pairwise(words) if before == "--set"])
    assert settings.cloud.upload_every > 1000


@pytest.mark.long
def test_a_mesh_under_faults_is_judged_round_by_round(tmp_path: Path) -> None:
    small = ["--data", _MOTION, "--peers", 3, "--kills", 1, "--stops", 1, "--planned-rounds", 10]
    small += ["--no-reference", "--plot", tmp_path / "chaos.svg"]
    told = _last(_run(tmp_path, "chaos", *small))
    assert (len(told["kills"]), len(told["stops"])) == (1, 1)
    assert told["rounds_exact"] == told["rounds_closed"] > 0
    assert "<svg" in (tmp_path / "chaos.svg").read_text()


def test_what_followed_in_a_moment_like_the_asked_one_counts_most() -> None:
    """At home at 8 one goes to work (1), at 18 to the gym (2); what is old or began elsewhere counts less."""

    def at(place: int, hour: int, gap: int = 0) -> list[list[float]]:
        return [[place], [hour], [0], [0], [5], [gap]]

    seen = torch.tensor([at(0, 8), at(0, 18), at(3, 8), at(0, 8, 60)]), torch.tensor([1, 2, 4, 5])
    counted = count_prior(seen, torch.tensor([at(0, 8), at(0, 18), at(3, 9)]), torch.tensor([1, 2, 4, 5]))
    assert counted.argmax(dim=1).tolist() == [0, 1, 2]
    assert torch.allclose(counted.sum(dim=1), torch.ones(3))
    assert (counted > 0).all()
    assert counted[0, 2] == pytest.approx(0.1 * float(counted[0, 0]) * math.exp(2 / 200), rel=0.01)


@pytest.mark.long
def test_colla_is_compared_with_its_rivals_on_a_log_of_places(tmp_path: Path) -> None:
    """Ten people who go from home to work, to lunch, to a class, a gym and a shop, seen every half hour."""

    def place(person: int, day: int, hour: float) -> str:
        to_work = 8 + person % 3 + day % 2
        if not to_work <= hour < 17:
            return "gym" if hour == 18 else "shop" if hour == 19 else "home"
        return "canteen" if 12 <= hour < 13 else "class" if hour == 14 else f"work {person % 2}"

    for person in range(10):
        rows = [
            f"{day * 86_400 + half * 1800},{place(person, day, half / 2)}"
            for day in range(30)
            for half in range(12, 44)
        ]
        (tmp_path / f"p{person}.csv").write_text("\n".join(["time,place", *rows]) + "\n")
    brief = {"epochs": 1}
    teaching = {"bootstrap": brief, "compress": brief, "cloud_update": brief, "rows": 50, "update_rows": 20}
    recipe = {"client": brief, "alone": brief, "central": brief, "teaching": teaching, "update": "customisation"}
    small = ["--data", tmp_path, "--out", tmp_path / "colla.json", "--seeds", 0, "--devices", 3]
    small += ["--initial", 2, 10, "--drawn", 2]
    run = _run(tmp_path, "colla", *small, "--set", json.dumps(recipe))
    assert run.returncode == 0, run.stderr[-2000:]
    assert "Colla + counts" in run.stdout
    result = _kept(tmp_path / "colla.json")
    assert [seed["devices"] for seed in result["seeds"]] == [3]
    assert len(result["table"]) == 3
    assert len(result["costs"]["rows"]) == 3 * 4
    assert list(result["initial_table"]) == ["2", "10"]
    assert {"Colla", "CT", "DT-ws", "DT"} <= set(result["initial_table"]["10"])
    assert {"one group", "best 70 % teach", "DT, RNN without time"} <= set(result["variants_table"][-1])
    assert "<svg" in (tmp_path / "colla.svg").read_text()
    again = _run(tmp_path, "colla", *small, "--set", json.dumps(recipe))
    assert "s of CPU" not in again.stderr, "what is there is not run again"
    assert again.stdout.splitlines()[:-1] == run.stdout.splitlines()[:-1]
    run = _run(tmp_path, "colla", *small, "--donors", 3)
    assert (run.returncode, "leave no device" in run.stderr) == (2, True), run.stderr[-2000:]


@pytest.mark.parametrize(
    ("text", "mbit", "bound_s"),
    [
        ("4x40@5", (40, 40, 40, 40), 1.5),
        ("3x40+10@5", (40, 40, 40, 10), 4.0),
        ("24+16+12+8+4+2@5", (24, 16, 12, 8, 4, 2), 20.0),
        ("8x40@5", (40,) * 8, 1.75),
        ("4~40@5", (), 6.0),
        ("8@46.4", (), None),
    ],
)
def test_a_place_is_read_and_its_bound_computed(text: str, mbit: tuple[float, ...], bound_s: float | None) -> None:
    case = parse_case(text)
    assert (case.mbit, case.bound_s) == (mbit, bound_s)
    assert case.values * 4 == case.megabytes * 1e6


@pytest.mark.parametrize("text", ["4x40", "@5", "4x@5", "1@5", "65@5", "4x40@0", "4x40@-1", "4x40@nan", "x@5", "4~@5"])
def test_no_place_is_told_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"3x40\+10@5|2 to 64 devices"):
        parse_case(text)


@pytest.mark.long
def test_a_round_is_timed_beside_others_on_loopback(tmp_path: Path) -> None:
    small = [
        "2@0.01",
        "3@0.3",
        "--plans",
        "chain,shares",
        "--rounds",
        4,
        "--runs",
        1,
        "--beside",
        "flower=/nowhere/python",
    ]
    run = _run(tmp_path, "round", *small, "--out", tmp_path / "round.json")
    told = _last(run)
    assert "flower is left out: /nowhere/python" in run.stderr
    for case in told["cases"].values():
        assert list(case["systems"]) == ["mdl chain", "mdl shares", "gloo", "ring", "chain"]
        for system in case["systems"].values():
            assert system["median_and_quartiles_s"][0] > 0.0
            assert (system["rounds"], system["wrong_runs"], system["of_bound"]) == (2, 0, None)
    assert "x gloo" in run.stdout
    assert len(json.loads((tmp_path / "round.json").read_text())["all"]["2@0.01"]["mdl shares"]) == 1


@pytest.mark.slow
@pytest.mark.skipif(bool(lan.why_not()), reason=lan.why_not() or "")
def test_a_round_is_timed_on_unequal_links_and_in_a_shared_channel(tmp_path: Path) -> None:
    small = ["20+5@0.2", "3~20@0.2", "--rounds", 4, "--runs", 1, "--others", "ring,chain"]
    told = _last(_run(tmp_path, "round", *small))
    for case in told["cases"].values():
        for system in case["systems"].values():
            assert 0.9 < system["of_bound"] < 20, case
            assert 0.95 < system["bytes_over_least"] < 3


@pytest.mark.slow
@pytest.mark.skipif(bool(lan.why_not()), reason=lan.why_not() or "")
def test_rounds_of_real_peers_are_timed_on_a_shaped_lan(tmp_path: Path) -> None:
    small = ["--policies", "greedy", "--runs", 1, "--rounds", 5]
    told = _last(_run(tmp_path, "lan_round", *small, "--out", tmp_path / "lan.json"))
    assert set(told["policies"]) == {"greedy"}
    rounds = json.loads((tmp_path / "lan.json").read_text())["all"]["greedy"]
    assert 1 <= len(rounds) <= 2  # of one, another device may take the office in the middle


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (["bare_round", "--rounds", "1"], "only warm up"),
        (["memory", "--rounds", "2"], "only warm up"),
        (["round", "4@5", "--rounds", "2"], "only warm up"),
        (["round", "4y40@5"], "write LINKS@MB"),
        (["round", "4@5", "--plans", "star"], "--plans star: choose from chain, shares"),
        (["round", "4@5", "--others", "nccl"], "--others nccl: choose from gloo, ring, chain"),
        (["round", "4@5", "--beside", "horovod=python"], "--beside horovod: choose from hivemind, flower"),
        (["chain_scheduler", "--part", "fig10", "--policies", "greedy"], "tree and ring"),
    ],
)
def test_too_little_to_measure_is_one_line(tmp_path: Path, command: list[str], complaint: str) -> None:
    run = _run(tmp_path, *command)
    assert run.returncode == 2
    assert complaint in run.stderr.splitlines()[-1]


@pytest.mark.slow
def test_codings_tell_accuracy_and_bytes_of_each_and_what_is_not_coded_is_the_plain_mean(tmp_path: Path) -> None:
    small = ["--peers", 2, "--rounds", 2, "--rounds-per-epoch", 2, "--seeds", 0]
    run = _run(tmp_path, "codings", "--data", _MOTION, *small)
    told = _last(run)["codings"]
    assert [line.split("|")[1].strip() for line in run.stdout.splitlines()[2:-1]] == list(CODINGS)
    sent = {coding: runs[0]["sent_mb"] for coding, runs in told.items()}
    assert sent["none"] / sent["int8"] > 3.5
    assert sent["none"] / sent["int4"] > 6.0
    again = _last(_run(tmp_path, "accuracy_recipe", "--data", _MOTION, *small[:4], "--seeds", 0, "--set",
                       json.dumps({"optimizer": "adam", "learning_rate": 0.002, "label_smoothing": 0.0,
                                   "rounds_per_epoch": 2})))  # fmt: skip
    assert told["none"][0]["accuracy"] == pytest.approx(again["seeds"][0]["mesh"], abs=0.02)


def test_deeptype_tells_what_each_technique_costs(tmp_path: Path) -> None:
    told = _last(
        _run(
            *(tmp_path, "deeptype", "costs", "--hidden", 20, "--turns", 1, "--words", 300),
            *("--only", "buckets", "all", "all, cached features"),
        )
    )
    assert set(told["seconds_per_1000_words"]) == {"buckets", "all", "all, cached features"}
    assert told["bytes"]["all"] < told["bytes"]["buckets"]


@pytest.mark.slow
def test_people_are_compared_with_the_public_model_and_with_each_technique(tmp_path: Path) -> None:
    corpus, blogs = tmp_path / "corpus.txt", tmp_path / "blogs.jsonl.gz"
    corpus.write_text(_say(200, seed=0))
    with gzip.open(blogs, "wt") as file:
        for author in range(3):
            file.writelines(json.dumps({"author": f"{author}", "text": _say(60, seed=author + 1)}) + "\n")
    table = build_table(read_sentences(corpus), 40)
    for name, rank in (("public", 0), ("thin", 4)):
        save_next_word(tmp_path / name, small_model(table, rank=rank), table)
    words = ("--blogs", blogs, "--corpus", corpus, "--share", 0.8, "--test", 100, "--skip", 0, "--count", 2)
    options = ("--global", f"tweets={tmp_path / 'public'}", "--compressed", tmp_path / "thin", "--epochs", 1)
    told = _last(_run(tmp_path, "deeptype_authors", *options, *words, "--out", tmp_path / "rows.json"))
    assert told["authors"] == 2
    assert told["summary"]["tweets, personal"]["median"] > told["summary"]["tweets"]["median"]
    ways = ("personal", "layers compressed", "vocabulary compressed", "all techniques")
    assert {f"tweets, {way} / tweets, all layers" for way in ways} <= set(told["summary"])


@pytest.mark.slow
def test_networks_are_compared_with_ngrams_by_how_much_they_learned(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(_say(200, seed=0))
    small = ("--amounts", 300, 2000, "--test", 300, "--words", 40, "--hidden", 12, "--sampled", 20, "--finish", 200)
    told = _last(_run(tmp_path, "deeptype_amounts", "--corpus", corpus, *small, "--out", tmp_path / "a"))
    assert told["rows"]["2000"]["network"] > told["rows"]["300"]["network"] > 0.0
    assert told["rows"]["2000"]["3-gram, filtered"] > told["rows"]["2000"]["1-gram, filtered"]


def _say(sentences: int, seed: int) -> str:
    return "".join(" ".join(sentence) + ".\n" for sentence in invent(sentences, seed))


@pytest.mark.slow
def test_one_persons_devices_are_compared_with_one_alone(tmp_path: Path) -> None:
    rng, rows = np.random.default_rng(0), 4 * 2 * 700
    number = np.arange(rows)
    recordings = {
        "codes": rng.integers(-300, 300, (rows, 6)).astype(np.int16),
        "units_per_code": np.full(6, 0.01),
        "label": (number // 140 % 5).astype(np.int8),
        "subject": np.array([1, 2, 3, 17])[number // 1400].astype(np.int8),
        "execution": np.ones(rows, np.int8),
        "device": (number // 700 % 2).astype(np.int8),
    }
    np.savez(tmp_path / "spsw.npz", **recordings)
    asked = (tmp_path / "spsw.npz", "--epochs", 2, "--accuracy", 0.0, "--windows-s", 2000)
    told = _last(_run(tmp_path, "individual", *asked))
    assert (told["windows"], told["test"]) == (120, 40)
    lines = {(line["devices"], line["how"]): line for line in told["lines"]}
    assert len(lines) == len(told["lines"]) == 10
    assert all(sum(line["shares"]) == 120 for line in lines.values())
    alone, all_five = lines[1, "alone"], lines[5, "by speed"]
    assert alone["total_energy_ratio"] == 1.0
    assert alone["total_j"] == pytest.approx(1.5 * alone["total_s"])
    assert lines[5, "others charge"]["total_j"] < all_five["total_j"] < alone["total_j"]
    assert lines[2, "equal"]["total_s"] > lines[2, "by speed"]["total_s"]


def test_structs_move_beside_their_module_before_it_is_compiled(tmp_path: Path) -> None:
    for part in ("", "protocol"):
        (tmp_path / "mdl" / part).mkdir(exist_ok=True)
        (tmp_path / "mdl" / part / "__init__.py").touch()
    path = tmp_path / "mdl/protocol/delta.py"
    path.write_text((ROOT / "mdl/protocol/delta.py").read_text())
    split_structs(path)
    assert "Struct, frozen" not in path.read_text()
    assert "from mdl.protocol.delta_structs import Contributor, Partial, ModelDelta" in path.read_text()
    assert "class ModelDelta(msgspec.Struct, frozen=True):" in path.with_name("delta_structs.py").read_text()
