"""Table 2's methods, each learned from all that comes before the last two items of each user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from benchmarks.recommend.learning import Options, Ranks, fit_best
from benchmarks.recommend.rivals.factorisation import (
    DeepFactorisation,
    FactorisationMachine,
    MatrixFactorisation,
    NeuralFactorisation,
)
from benchmarks.recommend.rivals.sasrec import SelfAttentiveRecommender, SequenceSettings, fit_sequences
from mdl.peers.dccl.model.din import Din, DinSettings, FitSettings, fit_model, score
from mdl.peers.dccl.model.interactions import Interactions, Negatives, make_test, ranks, training_places

# MF and its kin learn quicker than they generalise: the rate that DIN learns with.
_RATE = 3e-3
_SEQUENCES = SequenceSettings(epochs=200, learning_rate=2e-3)
# SASRec sees each user once a pass, where the others see each of their clicks.
_SEQUENCES_PER_TEST = 5


@dataclass(frozen=True)
class Method:
    """make: a model of so many users and items. in_sequences: learned as SASRec is."""

    make: Callable[[int, int], nn.Module]
    history: int = 20
    in_sequences: bool = False


def din_of(settings: DinSettings) -> Method:
    return Method(lambda users, items: Din(users, items, settings), settings.history)


BASELINES: dict[str, Method] = {
    "MF": Method(MatrixFactorisation),
    "FM": Method(FactorisationMachine),
    "NeuMF": Method(NeuralFactorisation),
    "DeepFM": Method(DeepFactorisation),
    "SASRec": Method(
        lambda _, items: SelfAttentiveRecommender(items, 50, _SEQUENCES.history), _SEQUENCES.history, in_sequences=True
    ),
}
# Table 5: embeddings of 8; and its two encoder layers over the history.
SIZES: dict[str, DinSettings] = {
    "DIN, embeddings of 8": DinSettings(embedding=8, dropout=0.1),
    "DIN, 8 and 2 layers": DinSettings(embedding=8, dropout=0.1, encoder_layers=2),
    "DIN, embeddings of 32": DinSettings(dropout=0.1),
}


def learn_method(name: str, method: Method, data: Interactions, seed: int, options: Options) -> Ranks:
    """Ranks after the pass that was best on everybody's last item but one."""
    torch.manual_seed(seed)
    model, rng = method.make(len(data.users), len(data.titles)), np.random.default_rng([seed, 3])
    negatives, tuning = Negatives.before(data), make_test(data, 2, method.history, seed)
    told = f"seed {seed}, {name}"
    if isinstance(model, SelfAttentiveRecommender):
        fit_best(
            model,
            lambda judge: fit_sequences(model, data, negatives, _SEQUENCES, rng, judge),
            tuning,
            told,
            _SEQUENCES_PER_TEST,
        )
    else:
        how = FitSettings(epochs=options.epochs, learning_rate=_RATE, batch=1024, history=method.history)
        places = training_places(data)
        fit_best(model, lambda judge: fit_model(model, data, places, negatives, how, rng, judge), tuning, told)
    return ranks(score(model, make_test(data, 1, method.history, seed)))
