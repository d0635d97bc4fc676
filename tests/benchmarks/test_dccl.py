"""DCCL's benchmark on small logs: what is kept, which pass is taken, and what its tables say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.recommend.figures import figure4
from benchmarks.recommend.learning import Options, Rows, fit_best, kept_rows
from benchmarks.recommend.report import PAPER, paired, show
from benchmarks.recommend.rounds import ROUNDS, figure5
from benchmarks.recommend.tables import FAIR, STALE, generated, table3, table4
from mdl.peers.dccl.model.din import DinSettings
from mdl.peers.dccl.model.interactions import gains, make_test
from tests.peers.dccl.model.logs import small_log

SMALL = Options(DinSettings(4, 8, 20, dropout=0.0), epochs=1, steps=1)


def test_what_was_found_is_kept_and_not_learned_again(tmp_path: Path) -> None:
    calls: list[int] = []

    def make() -> Rows:
        calls.append(1)
        return {"DIN (fair)": np.array([1, 2, 101])}

    for _ in range(2):
        rows = kept_rows(tmp_path / "new" / "rows.npz", make)
        assert rows["DIN (fair)"].tolist() == [1, 2, 101]
    assert len(calls) == 1
    kept_rows(None, make)
    kept_rows(None, make)
    assert len(calls) == 3


def test_the_best_pass_is_taken_and_learning_ends_after_it() -> None:
    """Passes whose scores of the true item go up and down again; tests are made at every second one."""
    tuning = make_test(small_log(), 2, 5, 0)
    model, seen = _Fixed(), []

    def learn(judge) -> None:  # type: ignore[no-untyped-def]
        for epoch, value in enumerate([9.0, 1.0, 9.0, 3.0, 9.0, 2.0, 9.0, 1.0, 9.0, 9.0]):
            model.value.data.fill_(value)
            seen.append(value)
            if not judge(epoch, 0.0):
                return

    fit_best(model, learn, tuning, "it", every=2, patience=2)
    assert model.value.item() == 3.0
    assert len(seen) == 8, "two tests without a better one"


class _Fixed(nn.Module):
    """The true item stands behind 4 - value others."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(()))

    def forward(self, users: torch.Tensor, history: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        scores = torch.zeros(candidates.shape)
        scores[:, 0] = self.value + 0.5
        scores[:, 1:5] = torch.arange(1.0, 5.0)
        return scores


def test_a_table_has_means_over_seeds_and_differences_paired_over_users(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    found = [{name: rng.integers(1, 102, 50) for name in ("DIN", "DCCL-m")} for _ in range(2)]
    told = show(found, ("DIN",))
    mine, theirs = (np.mean([100 * gains(rows[name], 10) for rows in found], axis=0) for name in ("DCCL-m", "DIN"))
    difference = told["DCCL-m"]["over"]["DIN"][1]
    assert difference["mean"] == pytest.approx(paired(mine, theirs).mean)
    assert difference["low"] < difference["mean"] < difference["high"]
    assert told["DIN"]["mean"]["HR@10"] == pytest.approx(np.mean([row[2] for row in told["DIN"]["by_seed"]]), abs=1e-3)
    assert "DCCL-m" in capsys.readouterr().out
    for figures in PAPER.values():
        assert figures[0] < figures[3] < figures[1] < figures[2]


def test_the_tables_tell_of_the_same_users_and_go_on_from_what_was_kept(tmp_path: Path) -> None:
    log, options = small_log(users=40), replace(SMALL, keep=tmp_path)
    rows = table3(log, 0, options)
    assert {STALE, FAIR, "DCCL-e", "DCCL-m"} <= rows.keys()
    assert {len(each) for each in rows.values()} == {40}
    assert all(each.min() >= 1 and each.max() <= 101 for each in rows.values())
    more = table4(log, 0, options) | generated(log, 0, options)
    assert {"DCCL-m, second", "DCCL-e, all", "generated, over fair"} <= more.keys()
    assert more["DCCL-m, all"].tolist() == rows["DCCL-m"].tolist()
    found = figure4(log, [0], options)
    assert found["samples"] == [12] * 20
    assert len(found["DCCL-e over stale"]) == 20


def test_rounds_by_the_calendar_need_times_and_learn_only_what_came_before() -> None:
    with pytest.raises(AssertionError, match="no times"):
        figure5(small_log(users=30), [0], SMALL)
    log = small_log(users=30)
    timed = replace(log, times=np.tile(np.arange(12.0), 30) + np.repeat(np.arange(30.0), 12))
    found = figure5(timed, [0], replace(SMALL, din=DinSettings(4, 8, 20, 0.0, has_user=False)))
    assert {"before", "DIN, 1 round", "DCCL-e, 8 rounds", "DCCL-m, 4 rounds"} <= found.keys()
    assert {f"DCCL-m over DIN, {count}" for count in ROUNDS} <= found.keys()
