"""DCCL (KDD 2021) made again: what a device's vector gains over the model it was given, and over a fair one (Table 3).

    python benchmarks/dccl.py table3 --data movielens:ml-1m --seeds 3
    python benchmarks/dccl.py memory
    python benchmarks/dccl.py costs

`table3`: DIN learns the first half of each user's sequence (stale); devices learn vectors from the second (DCCL-e);
the cloud learns from the second half, without vectors (fair: DIN continued) and with them (DCCL-m, with patches and
without). All are ranked on each user's last item among 100 negatives; differences are paired over users. Controls: the
mean vector for all, and other people's vectors. `memory`: what distilling 100 to 10,000 devices' vectors takes.
`costs`: seconds of a device's update and of a recommendation. The paper's figures stand beside ours.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when called by its path

from mdl.files.checkpoint import read_safetensors, write_safetensors
from mdl.recommend.device_step import VectorSettings, learn_vectors, score_with_vectors
from mdl.recommend.din import DinSettings
from mdl.recommend.interactions import Interactions, group_by_user, keep_users
from mdl.recommend.lesson import Lesson
from mdl.recommend.metrics import gains, group_by_activity, hits, paired, ranks, top_metrics, user_auc
from mdl.recommend.momodistill import CloudModel, DistillSettings, distill_basis, distill_model, make_cloud_model
from mdl.recommend.personal import learn_vector, suggest
from mdl.recommend.readers import read_interactions
from mdl.recommend.splits import Negatives, Samples, make_test, training_places
from mdl.recommend.training import FitSettings, fit_model, score

# Table 2, MovieLens-1M: HitRate@1, 5, 10, NDCG@5, 10. DCCL is one round, DCCL-m.
PAPER = {"DIN": (37.45, 70.71, 81.25, 55.22, 58.65), "DCCL": (38.69, 71.97, 82.23, 56.43, 59.77)}
HALF = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("table3", "memory", "costs"))
    parser.add_argument("--data", default="", help="movielens:PATH?least=1, or csv:PATH")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=15, help="of the stale model, over the first half")
    parser.add_argument("--no-user", action="store_true", help="DIN without the user's own embedding")
    parser.add_argument("--steps", type=int, default=20, help="of Eq. 3 on each device")
    parser.add_argument("--rate", type=float, default=0.02, help="of Eq. 3")
    parser.add_argument("--beta", type=float, default=0.01)
    parser.add_argument("--keep", type=Path, help="folder for the stale model and basis, which are used again")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "table3":
        data = read_interactions(arguments.data)
        found: Any = [run_table3(data, seed, arguments) for seed in range(arguments.seeds)]
    else:
        found = run_memory() if arguments.what == "memory" else run_costs()
    print(json.dumps(found))


def run_table3(data: Interactions, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    din = DinSettings(dropout=0.1, has_user=not arguments.no_user)
    test = make_test(data, 1, din.history, seed)
    stale = _stale(data, din, seed, arguments)
    second, negatives = training_places(data, (HALF, 1)), Negatives.before(data)
    settings = VectorSettings(steps=arguments.steps, learning_rate=arguments.rate)
    start = stale.warm_start(torch.zeros(len(data.users), stale.basis.size), data.profiles)
    began = time.process_time()
    vectors = learn_vectors(stale.model, stale.basis, start, data, second, negatives, settings, seed)
    print(f"seed {seed}: {len(data.users)} devices' vectors in {time.process_time() - began:.0f} s", flush=True)
    mean_shift = start + (vectors - start).mean(dim=0)
    others = vectors[torch.from_numpy(np.random.default_rng(seed).permutation(len(vectors)))]
    rows: dict[str, NDArray[np.float32]] = {
        "DIN (stale)": score(stale.model, test),
        "start U(0, u)": _scores(stale, start, test),
        "DCCL-e": _scores(stale, vectors, test),
        "mean vector": _scores(stale, mean_shift, test),
        "others' vectors": _scores(stale, others, test),
    }
    pass_ = FitSettings(epochs=1, learning_rate=1e-3, batch=1024)
    for name, given, beta in (("DIN (fair)", None, 0.0), ("DCCL-m", vectors, arguments.beta)):
        how = DistillSettings(beta, pass_, pass_)
        torch.manual_seed(seed)
        rng = np.random.default_rng([seed, 9])
        cloud = distill_model(stale, given, data, second, negatives, how, rng)
        rows[name if given is None else f"{name}, no patches"] = score(cloud.model, test)
        if given is not None:
            cloud = distill_basis(cloud, stale, given, data, second, negatives, how, rng)
            rows[f"{name}, U(theta, u)"] = _scores(cloud, cloud.warm_start(vectors, data.profiles), test)
            rows[f"{name}, raw vectors"] = _scores(cloud, vectors, test)
    return _tell(data, test, rows, seed)


def _stale(data: Interactions, din: DinSettings, seed: int, arguments: argparse.Namespace) -> CloudModel:
    """f and Theta from the first half of each user's sequence; Theta by Eq. 7 from zero vectors."""
    torch.manual_seed(seed)
    cloud = make_cloud_model(data, din)
    name = f"stale-{seed}-{'no-user' if arguments.no_user else 'user'}.safetensors"
    path = arguments.keep / name if arguments.keep else None
    parts = {"model": cloud.model, "basis": cloud.basis, "encoder": cloud.encoder}
    if path and path.exists():
        arrays, _ = read_safetensors(path)
        for part, module in parts.items():
            mine = {
                key.partition(".")[2]: torch.from_numpy(value) for key, value in arrays.items() if key.startswith(part)
            }
            module.load_state_dict(mine)
        return cloud
    first, negatives, rng = training_places(data, (0, HALF)), Negatives.before(data, HALF), np.random.default_rng(seed)
    tuning, best = make_test(data, 2, din.history, seed), [0.0]
    kept: dict[str, Tensor] = {}

    def judge(epoch: int, loss: float) -> bool:
        found = top_metrics(ranks(score(cloud.model, tuning)))
        print(f"seed {seed} epoch {epoch + 1}: {loss:.4f} {found['HR@10']:.2f} {found['NDCG@10']:.2f}", flush=True)
        if found["NDCG@10"] > best[0]:
            best[0] = found["NDCG@10"]
            kept.update({key: value.clone() for key, value in cloud.model.state_dict().items()})
        return True

    how = FitSettings(epochs=arguments.epochs, learning_rate=3e-3, batch=1024)
    fit_model(cloud.model, data, first, negatives, how, rng, judge)
    cloud.model.load_state_dict(kept)
    pretraining = DistillSettings(0.0, basis=FitSettings(epochs=1, batch=1024))
    made = distill_basis(cloud, cloud, None, data, first, negatives, pretraining, rng)
    if path:
        parts = {"model": made.model, "basis": made.basis, "encoder": made.encoder}
        write_safetensors(
            path,
            {f"{part}.{key}": value.numpy() for part, it in parts.items() for key, value in it.state_dict().items()},
            {},
        )
    return made


@torch.no_grad()
def _scores(cloud: CloudModel, vectors: Tensor, test: Samples) -> NDArray[np.float32]:
    cloud.model.eval()
    pieces = [test.take(slice(begin, begin + 512)) for begin in range(0, len(test), 512)]
    return torch.cat([score_with_vectors(cloud.model, cloud.basis, vectors, piece) for piece in pieces]).numpy()


def _tell(data: Interactions, test: Samples, rows: dict[str, NDArray[np.float32]], seed: int) -> dict[str, Any]:
    found: dict[str, Any] = {"seed": seed}
    stale, fair = (ranks(rows[name]) for name in ("DIN (stale)", "DIN (fair)"))
    print(f"{'':22}  HR@1  HR@5 HR@10  ND@5 ND@10   HR@10 - stale         NDCG@10 - stale       NDCG@10 - fair")
    for name, scores in rows.items():
        rank = ranks(scores)
        over = [
            paired(100 * hits(rank, 10), 100 * hits(stale, 10)),
            paired(100 * gains(rank, 10), 100 * gains(stale, 10)),
            paired(100 * gains(rank, 10), 100 * gains(fair, 10)),
        ]
        told = "  ".join(f"{it.mean:+5.2f} ({it.low:+.2f} .. {it.high:+.2f})" for it in over)
        print(f"{name:22} " + " ".join(f"{value:5.2f}" for value in top_metrics(rank).values()) + f"  {told}")
        found[name] = {**top_metrics(rank), "over": [asdict(it) for it in over]}
    for name, figures in PAPER.items():
        print(f"{'paper: ' + name:22} " + " ".join(f"{value:5.2f}" for value in figures))
    counts = data.lengths[test.users]
    groups = group_by_activity(counts, 20)
    auc = {name: [100 * float(user_auc(rows[name][group]).mean()) for group in groups] for name in rows}
    for name in ("DIN (stale)", "DCCL-e", "DIN (fair)"):
        print(f"macro-AUC, 20 groups, {name:12}: " + " ".join(f"{value:.1f}" for value in auc[name]))
    return {**found, "macro_auc": auc}


def run_memory() -> list[dict[str, float]]:
    """One distillation in a fresh log of each size, in order of size: what the process has taken at most by then."""
    found = []
    for users in (100, 1_000, 10_000):
        rng = np.random.default_rng(users)
        data = group_by_user(np.repeat(np.arange(users), 30), rng.integers(0, 3000, 30 * users), None)
        torch.manual_seed(0)
        cloud = make_cloud_model(data, DinSettings(has_user=False))
        vectors, how = torch.randn(users, cloud.basis.size), FitSettings(epochs=1, batch=256)
        settings = DistillSettings(0.01, how, how)
        places, negatives = training_places(data), Negatives.before(data)
        steps = places.take(np.arange(min(len(places), 20 * 256)))  # the same work for each
        steps = places.take(rng.permutation(len(places))[: len(steps)])
        began = time.process_time()
        learned = distill_model(cloud, vectors, data, steps, negatives, settings, rng)
        distill_basis(learned, cloud, vectors, data, steps, negatives, settings, rng)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        found.append({"devices": users, "peak_mb": round(peak, 1), "seconds": round(time.process_time() - began, 2)})
        print(
            f"{users:6} devices: {peak:.1f} MB at most, {found[-1]['seconds']} s for {len(steps)} samples", flush=True
        )
    return found


def run_costs() -> dict[str, float]:
    """A device with 100 interactions, of a catalogue like MovieLens-1M's; the median of 20 on one core."""
    rng = np.random.default_rng(0)
    data = group_by_user(np.repeat(np.arange(60), 101), rng.integers(0, 3706, 60 * 101), None)
    torch.manual_seed(0)
    lesson = Lesson(make_cloud_model(data, DinSettings(has_user=False)), data.titles)
    own = keep_users(data, np.array([0]))
    update, shown = [], []
    for _ in range(20):
        began = time.process_time()
        vector = learn_vector(lesson, own, None, VectorSettings(), 0)
        middle = time.process_time()
        suggest(lesson, own, vector, 10)
        update.append(middle - began)
        shown.append(time.process_time() - middle)
    found = {"update_s": float(np.median(update)), "recommendation_ms": 1e3 * float(np.median(shown))}
    print(f"an update of 100 interactions: {found['update_s']:.3f} s; top 10: {found['recommendation_ms']:.1f} ms")
    return found


if __name__ == "__main__":
    main()
