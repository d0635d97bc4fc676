"""All benchmarks, a line each: the name, what it measures, and the page whose claim it holds.

A name is that of a module in `benchmarks/`; the page shows its figures beside its command.
"""

from __future__ import annotations

from typing import NamedTuple

from mdl.errors import ConfigError, did_you_mean


class Benchmark(NamedTuple):
    """line: one sentence for the list. claim: a page, from the repository's root; "" for the tool's own commands."""

    name: str
    line: str
    claim: str

    @property
    def module(self) -> str:
        """Return the module that has its options and measures."""
        return f"benchmarks.{self.name}" if self.claim else f"benchmarks.tool.{self.name}"


BENCHMARKS = (
    Benchmark("accuracy", "Real processes: the mesh beside central training and each device alone, over seeds.",
              "docs/results/accuracy.md"),
    Benchmark("accuracy_recipe", "The same accuracy in one process, to judge a recipe of training in minutes.",
              "docs/results/accuracy.md"),
    Benchmark("allowed_hours", "Hours a day that each `--when` leaves, played on recordings of phones.",
              "docs/results/phones.md"),
    Benchmark("bare_round", "Round times without training, one state of the code against another.",
              "docs/results/speed.md"),
    Benchmark("chain_scheduler", "Policies on simulated devices, and MDLdroid's Fig. 6 and 8 to 10.",
              "docs/results/scheduling.md"),
    Benchmark("chaos", "Real processes under SIGKILL and SIGSTOP: rounds closed, waits, exact results, accuracy.",
              "docs/results/faults.md"),
    Benchmark("cloud_mesh", "Accuracy of a mesh with a cloud beside one without.",
              "docs/results/colla.md"),
    Benchmark("codings", "Accuracy and bytes of each `round.compress`.",
              "docs/results/speed.md"),
    Benchmark("colla", "Colla's experiment on logs of places: Table 1, Fig. 5 to 7, 9, 11 to 14.",
              "docs/results/colla.md"),
    Benchmark("compiled", "A compiled copy of mdl for campaigns: how much faster, and whether it does the same.",
              "docs/results/history/under-faults-3.md"),
    Benchmark("dccl", "DCCL's Tables 2 to 5 and Fig. 4, 5, 7, beside other methods; memory and costs.",
              "docs/results/dccl.md"),
    Benchmark("dccl_fleet", "A thousand live devices and one cloud of recommenders that is killed twice.",
              "docs/results/dccl.md"),
    Benchmark("deeptype", "Costs of each technique of DeepType, and of a step of learning online.",
              "docs/results/deeptype.md"),
    Benchmark("deeptype_amounts", "A network of words and n-grams, by how much text they learned from.",
              "docs/results/deeptype.md"),
    Benchmark("deeptype_authors", "People's own models beside the public model, n-grams and each technique.",
              "docs/results/deeptype.md"),
    Benchmark("deeptype_cold", "A group of like users as the start of somebody with little text.",
              "docs/results/history/deeptype-4.md"),
    Benchmark("deeptype_online", "Learning while somebody types, emulated.",
              "docs/results/deeptype.md"),
    Benchmark("device_fit", "Constants of the device models, fitted to recordings of phones.",
              "docs/results/phones.md"),
    Benchmark("doctor", "Faults of machines and networks that `mdl doctor` names, and its false alarms.",
              "docs/doctor-tests.md"),
    Benchmark("drift", "One person's sensor turns round: accuracy of the others, with old windows kept and without.",
              "docs/data-live.md"),
    Benchmark("forks", "Forks of simulated meshes under faults, and those that had a majority present.",
              "docs/protocol-forks.md"),
    Benchmark("individual", "One person's devices share data: time and energy beside one device alone.",
              "docs/results/security.md"),
    Benchmark("lan_round", "Round times of real peers by policy, on unequal links.",
              "docs/results/links.md"),
    Benchmark("loop", "The longest step of a device's network loop, and pause of its heartbeats, with a large model.",
              "benchmarks/README.md"),
    Benchmark("lora", "Adapters of a language model on four devices beside the same in one place.",
              "docs/results/accuracy.md"),
    Benchmark("lost_device", "Seconds of a round in segments in which a device is killed.",
              "docs/results/faults.md"),
    Benchmark("mdldroid", "MDLdroid's evaluation: a master with slaves, Flower, Table 3, Fig. 1, 3, 11 to 14.",
              "docs/results/mdldroid.md"),
    Benchmark("memory", "Extra memory of a device while it aggregates, by the number of devices.",
              "docs/results/mdldroid.md"),
    Benchmark("moving", "Pause of the rounds when a device gets another address or subnet.",
              "docs/results/links.md"),
    Benchmark("outer", "Accuracy against rounds and bytes with an outer optimizer.",
              "docs/results/accuracy.md"),
    Benchmark("outsiders", "Memory, processor and round times of members while strangers attack.",
              "docs/security-tests.md"),
    Benchmark("own_batch_norm", "Batch norms of all together, each device's own, and each alone.",
              "docs/training-batch-norm.md"),
    Benchmark("personal_motion", "Motion windows: a personal last layer or 64 numbers beside the shared model.",
              "docs/results/dccl.md"),
    Benchmark("personal_nights", "People's devices over ten nights in a mesh, beside own training alone.",
              "docs/results/deeptype.md"),
    Benchmark("pictures", "The pictures of README.md and docs/, made anew.",
              "CONTRIBUTING.md"),
    Benchmark("poisoning", "Accuracy with members that lie, with the defence and without.",
              "docs/results/security.md"),
    Benchmark("relearning", "Memory and processor time of a device that leads and re-learns the schedule.",
              "docs/results/scheduling.md"),
    Benchmark("roster_room", "Time to read a full roster, and for each statement that comes to it.",
              "benchmarks/README.md"),
    Benchmark("round", "One averaging round beside gloo, a ring, a chain, hivemind, Flower and the links' bound.",
              "docs/results/speed.md"),
    Benchmark("rounds", "Really trains by the rounds that participation rules play: seconds to an accuracy.",
              "docs/results/rounds.md"),
    Benchmark("simscale", "Processor time, memory and messages of a simulated mesh, by its size.",
              "benchmarks/README.md"),
    Benchmark("slow_link", "Rounds over links that are long or lose frames, beside plain TCP.",
              "docs/results/links.md"),
    Benchmark("start", "Seconds from `mdl up` to its first round, beside `import torch`.",
              "docs/results/speed.md"),
    Benchmark("tables", "Reading CSV files: processor time and memory, beside libraries alone.",
              "docs/data-csv.md"),
    Benchmark("turnover", "From the last delta ready to the next training begun, by phases.",
              "benchmarks/README.md"),
    Benchmark("type_in_tmux", "Somebody types a text into `mdl type` in a real terminal.",
              "docs/results/history/deeptype-3.md"),
    Benchmark("waiting", "Rounds that do not wait for the slowest: the mesh's machines, really training.",
              "docs/results/waiting.md"),
    Benchmark("waiting_live", "Time to accuracy of real processes that are paced by recorded phones, rule by rule.",
              "docs/results/waiting.md"),
    Benchmark("web", "The page: first paint, an event's way to it, and what serving it takes.",
              "docs/results/page.md"),
    Benchmark("weights", "Devices that weigh 1 each or by their windows, with shares of 1 to 100.",
              "docs/training-weights.md"),
    Benchmark("wire", "One vector from process to process: TCP, ZeroMQ, CURVE, a hop and segments of mdl.",
              "benchmarks/README.md"),
)  # fmt: skip
RESULTS = Benchmark("results", "The raw results of a release: pack them (--pack), or check and unpack a file.", "")


def find(name: str) -> Benchmark:
    """Return the benchmark of this name. Raises ConfigError, with the closest one, if there is none."""
    known = {each.name: each for each in (*BENCHMARKS, RESULTS)}
    if name not in known:
        close = did_you_mean(name, known) or "; python -m benchmarks lists them"
        raise ConfigError(f"there is no benchmark {name!r}{close}")
    return known[name]
