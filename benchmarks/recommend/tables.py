"""Tables 2 to 5, as ranks of each method on one seed."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from benchmarks.recommend.learning import (
    HALF,
    ONE_PASS,
    Options,
    Ranks,
    Rows,
    kept_rows,
    learn_on_devices,
    learn_round,
    learn_stale,
    patch_at,
    rank_with,
)
from benchmarks.recommend.methods import BASELINES, SIZES, din_of, learn_method
from benchmarks.recommend.rivals.generator import learn_generator
from mdl.peers.dccl.model.din import JUNCTIONS
from mdl.peers.dccl.model.interactions import Interactions, ItemSamples, Negatives, make_test, ranks, training_places
from mdl.peers.dccl.model.momodistill import CloudModel

STALE, FAIR = "DIN (stale)", "DIN (fair)"
# Table 4 of the paper: the junctions one by one, and all.
PLACES = {"first": ("first",), "second": ("second",), "third": ("third",), "all": JUNCTIONS}


def table2(data: Interactions, seed: int, options: Options) -> Rows:
    """The baselines, and DCCL after one round; DIN (fair) is what DCCL's round without vectors comes to."""
    rows: Rows = {}
    for name, method in ({"DIN": din_of(options.din)} | BASELINES).items():
        rows[name] = _kept(options, f"{name}-{seed}", partial(learn_method, name, method, data, seed, options))
    collaborated = table3(data, seed, options)
    return rows | {name: collaborated[name] for name in (FAIR, "DCCL-m")}


def table3(data: Interactions, seed: int, options: Options) -> Rows:
    """Stale, device's and cloud's step, two controls, and the fair DIN."""
    return kept_rows(options.path(f"table3-{seed}.npz"), partial(_collaborate, data, seed, options))


def table4(data: Interactions, seed: int, options: Options) -> Rows:
    """One round with patches at one junction alone."""
    rows = kept_rows(options.path(f"table4-{seed}.npz"), partial(_by_junction, data, seed, options))
    collaborated = table3(data, seed, options)
    both = {f"{name}, all": collaborated[name] for name in ("DCCL-e", "DCCL-m")}
    return {STALE: collaborated[STALE], FAIR: collaborated[FAIR]} | rows | both


def table5(data: Interactions, seed: int, options: Options) -> Rows:
    """DIN of the paper's sizes beside ours."""
    return {
        name: _kept(options, f"{name}-{seed}", partial(learn_method, name, din_of(settings), data, seed, options))
        for name, settings in SIZES.items()
    }


def generated(data: Interactions, seed: int, options: Options) -> Rows:
    """Beside Table 3: vectors that nobody learned, made of the last interactions, for the stale and the fair DIN."""
    rows = kept_rows(options.path(f"generated-{seed}.npz"), partial(_generate, data, seed, options))
    collaborated = table3(data, seed, options)
    return {name: collaborated[name] for name in (STALE, "DCCL-e", FAIR, "DCCL-m")} | rows


def _collaborate(data: Interactions, seed: int, options: Options) -> Rows:
    test = make_test(data, 1, options.din.history, seed)
    stale = learn_stale(data, seed, options)
    start, vectors = learn_on_devices(stale, data, seed, options)
    others = vectors[torch.from_numpy(np.random.default_rng(seed).permutation(len(vectors)))]
    fair, cloud = (learn_round(stale, given, data, seed, options) for given in (None, vectors))
    return {
        STALE: rank_with(stale, None, test),
        "start U(0, u)": rank_with(stale, start, test),
        "DCCL-e": rank_with(stale, vectors, test),
        "mean of all moves": rank_with(stale, start + (vectors - start).mean(dim=0), test),
        "others' vectors": rank_with(stale, others, test),
        FAIR: rank_with(fair, None, test),
        "DCCL-m, no patches": rank_with(cloud, None, test),
        "DCCL-m": rank_with(cloud, cloud.warm_start(vectors, data.profiles), test),
        "DCCL-m, raw vectors": rank_with(cloud, vectors, test),
    }


def _by_junction(data: Interactions, seed: int, options: Options) -> Rows:
    test, stale = make_test(data, 1, options.din.history, seed), learn_stale(data, seed, options)
    rows: Rows = {}
    for name, junctions in PLACES.items():
        if junctions == JUNCTIONS:
            continue
        patched = patch_at(stale, junctions, data, seed)
        _, vectors = learn_on_devices(patched, data, seed, options)
        cloud = learn_round(patched, vectors, data, seed, options)
        rows[f"DCCL-e, {name}"] = rank_with(patched, vectors, test)
        rows[f"DCCL-m, {name}"] = rank_with(cloud, cloud.warm_start(vectors, data.profiles), test)
        print(f"seed {seed}, {name} junction is done", flush=True)
    return rows


def _generate(data: Interactions, seed: int, options: Options) -> Rows:
    test, stale = make_test(data, 1, options.din.history, seed), learn_stale(data, seed, options)
    fair = learn_round(stale, None, data, seed, options)
    return {
        f"generated, over {name}": _rank_generated(cloud, data, test, seed)
        for name, cloud in (("stale", stale), ("fair", fair))
    }


def _rank_generated(cloud: CloudModel, data: Interactions, test: ItemSamples, seed: int) -> Ranks:
    torch.manual_seed(seed)
    places, negatives = training_places(data, (HALF, 1)), Negatives.before(data)
    made = learn_generator(cloud, data, places, negatives, ONE_PASS, np.random.default_rng([seed, 5]))
    pieces = [made.score(test.take(slice(begin, begin + 512))) for begin in range(0, len(test), 512)]
    return ranks(torch.cat(pieces).numpy())


def _kept(options: Options, name: str, make: partial[Ranks]) -> Ranks:
    slug = "".join(letter if letter.isalnum() else "-" for letter in name)
    return kept_rows(options.path(f"{slug}.npz"), lambda: {"rank": make()})["rank"]
