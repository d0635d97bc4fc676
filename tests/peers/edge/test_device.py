"""What a device trains with: which devices may merge, and which model a file may be used with."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from mdl.config import CloudSection, Config, DataSection, EndSection, RoundSection, TrainingSettings
from mdl.errors import ConfigError, DataError, TrainingCancelledError
from mdl.files.checkpoint import CachedModel, ModelCache, read_safetensors
from mdl.files.export import read_description
from mdl.learning.flat import hash_task
from mdl.peers.edge.device import Device
from mdl.peers.use.inference import evaluate_model
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    DeltaRecalled,
    Evaluate,
    Evaluated,
    LocalDeltaReady,
    RecallDelta,
    TrainingPaused,
    TrainLocally,
)
from mdl.task import task_difference

ME = Contributor("me", 1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write_csv(path: Path, header: str) -> Path:
    rng = np.random.default_rng(0)
    rows = [",".join(f"{value:.3f}" for value in rng.normal(size=3)) + f",{'ab'[row // 40 % 2]}" for row in range(400)]
    path.write_text("\n".join([f"{header},label", *rows]))
    return path


def device(file: Path, options: str = "") -> Device:
    data = DataSection(spec=f"csv:{file}?label=label&window=20{options}")
    return Device(Config(data=data), ME, "home", file.parent / file.stem)


def test_devices_that_have_data_of_their_own_drop_out_units_of_their_own(tmp_path: Path) -> None:
    spec = f"csv:{write_csv(tmp_path / 'a.csv', 'ax,ay,az')}?label=label&window=20"

    def learned(name: str, shard: str = "1/1") -> bytes:
        made = Device(
            Config(data=DataSection(spec=spec, shard=shard, split="iid")), Contributor(name, 1), "home", tmp_path
        )
        done = made.work()[TrainLocally](TrainLocally(1, made.model.values().copy()))
        assert isinstance(done, LocalDeltaReady)
        return done.delta.values.tobytes()

    assert learned("ann") == learned("ann")
    assert learned("ann") != learned("bob")
    assert learned("ann", "1/2") == learned("bob", "1/2")  # a share of one data set is drawn by its number


def test_devices_whose_channels_have_other_names_or_another_order_are_told_apart(tmp_path: Path) -> None:
    first = device(write_csv(tmp_path / "a.csv", "ax,ay,az"))
    turned = device(write_csv(tmp_path / "b.csv", "az,ax,ay"))
    other = device(write_csv(tmp_path / "c.csv", "gx,gy,gz"))
    assert len({each.schema_hash for each in (first, turned, other)}) == 3
    assert {each.model.schema_hash for each in (first, turned, other)} == {first.model.schema_hash}
    assert device(tmp_path / "b.csv", "&columns=ax,ay,az").schema_hash == first.schema_hash
    assert first.summary == "lenet 3x20 [ax, ay, az] -> a, b"


def test_a_file_cache_from_before_channels_had_names_is_read(tmp_path: Path) -> None:
    first = device(write_csv(tmp_path / "a.csv", "ax,ay,az"))
    values = np.full(first.model.size, 0.5, np.float32)
    ModelCache(tmp_path / "a").save(CachedModel(values, 7, hash_task(first.model.schema, ("a", "b")), "home"))
    state = device(tmp_path / "a.csv").restore()
    assert (state.round_id, state.parameters[0]) == (7, 0.5)


def test_what_is_exported_is_the_meshs_model_also_while_a_step_changes_the_module(tmp_path: Path) -> None:
    first = device(write_csv(tmp_path / "a.csv", "ax,ay,az"))
    parameters, file = first.model.values().copy(), tmp_path / "global.safetensors"
    first.model.live().add_(1.0)  # a step under way
    first.export(file, 3, parameters)
    first.model.load(parameters)
    arrays, _ = read_safetensors(file)
    for name, tensor in first.model.module.state_dict().items():
        assert np.array_equal(arrays[name], tensor.numpy()), name


def test_a_variance_below_zero_is_exported_as_zero(tmp_path: Path) -> None:
    first, file = device(write_csv(tmp_path / "a.csv", "ax,ay,az")), tmp_path / "global.safetensors"
    parameters = np.full(first.model.size, -1.0, np.float32)
    parameters.flags.writeable = False  # as it comes from a link
    first.export(file, 3, parameters)
    arrays, _ = read_safetensors(file)
    assert {array.max() for name, array in arrays.items() if name.endswith("running_var")} == {0}
    assert arrays["0.running_mean"].max() == -1


def test_a_model_is_not_tested_on_channels_that_are_not_its_own(tmp_path: Path) -> None:
    first = device(write_csv(tmp_path / "a.csv", "ax,ay,az"))
    model = tmp_path / "global.safetensors"
    first.export(model, 3, first.model.values().copy())
    spec = "csv:{}?label=label&window=20"
    assert evaluate_model(model, spec.format(tmp_path / "a.csv"))["windows"] > 0
    turned = spec.format(write_csv(tmp_path / "b.csv", "az,ax,ay"))
    with pytest.raises(DataError, match=r"channel 1 is 'ax' here and 'az' there"):
        evaluate_model(model, turned)
    assert evaluate_model(model, f"{turned}&columns=ax,ay,az")["windows"] > 0


def test_devices_of_two_sampling_rates_are_told_apart_and_an_older_file_cache_is_read(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "a.csv", "ax,ay,az")
    unknown, slow, fast = device(file), device(file, "&rate=50"), device(file, "&rate=100")
    assert len({each.schema_hash for each in (unknown, slow, fast)}) == 3
    assert slow.schema_hash == device(file, "&rate=50.4").schema_hash
    assert slow.summary == "lenet 3x20 at 50 Hz [ax, ay, az] -> a, b"
    values = np.full(slow.model.size, 0.5, np.float32)
    ModelCache(tmp_path / "a").save(CachedModel(values, 7, unknown.schema_hash, "home"))
    assert slow.restore().round_id == 7


def test_a_model_is_not_tested_on_windows_of_another_rate(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "a.csv", "ax,ay,az")
    slow = device(file, "&rate=50")
    slow.export(tmp_path / "model.safetensors", 1, slow.model.values())
    with pytest.raises(DataError, match="sampling rate is not the model's: 50 Hz here and 100 Hz there"):
        evaluate_model(tmp_path / "model.safetensors", f"csv:{file}?label=label&window=20&rate=100")
    evaluate_model(tmp_path / "model.safetensors", f"csv:{file}?label=label&window=20")


def test_a_device_that_may_not_train_or_leaves_before_gives_the_round_up_within_one_batch(tmp_path: Path) -> None:
    data = DataSection(spec=f"csv:{write_csv(tmp_path / 'a.csv', 'ax,ay,az')}?label=label&window=20")
    own = Device(Config(data=data, training=TrainingSettings(batch_size=8)), ME, "home", tmp_path / "a")
    train, start = own.work()[TrainLocally], TrainLocally(1, own.model.values().copy())
    asked = []
    own.is_paused = lambda: bool(asked.append(1)) or len(asked) > 2
    assert train(start) == TrainingPaused(1)
    assert len(asked) == 3, "at the start, and before each batch"
    assert train(start) == TrainingPaused(1)
    own.is_paused = lambda: False
    own.stays_for = lambda round_id: round_id != 1
    assert train(start) == TrainingPaused(1)
    own.stays_for = lambda round_id: round_id == 1
    assert isinstance(train(start), LocalDeltaReady)
    own.stop()
    with pytest.raises(TrainingCancelledError):
        train(start)


def test_a_pause_cuts_off_a_test_that_is_under_way(tmp_path: Path) -> None:
    me = device(write_csv(tmp_path / "a.csv", "ax,ay,az"))
    test, parameters = me.work()[Evaluate], me.model.values().copy()
    done = test(Evaluate(1, parameters))
    assert isinstance(done, Evaluated)
    assert done.evaluation.n == len(me.test) > 0
    me.is_paused = lambda: True
    assert test(Evaluate(1, parameters)) is None


def test_a_test_is_of_the_batch_norm_that_the_device_had_then_and_leaves_what_is_trained(tmp_path: Path) -> None:
    data = DataSection(spec=f"csv:{write_csv(tmp_path / 'a.csv', 'ax,ay,az')}?label=label&window=20")
    me = Device(Config(data=data, training=TrainingSettings(batch_norm="own")), ME, "home", tmp_path / "run")
    work, parameters = me.work(), me.model.values().copy()
    work[TrainLocally](TrainLocally(1, parameters))
    asked = work[Evaluate](Evaluate(1, parameters))
    first = {name: tensor.clone() for name, tensor in me.model.own_state().items()}
    work[TrainLocally](TrainLocally(2, parameters))
    assert work[Evaluate](Evaluate(1, parameters)) == asked
    assert not torch.equal(me.model.own_state()["0.running_mean"], first["0.running_mean"])
    recalled = work[RecallDelta](RecallDelta(2, parameters))
    assert isinstance(recalled, DeltaRecalled)
    assert recalled.values is not None


def test_windows_are_turned_where_three_channels_are_axes_and_refused_elsewhere(tmp_path: Path) -> None:
    def learned(rotate_deg: float, header: str = "ax,ay,az") -> bytes:
        data = DataSection(spec=f"csv:{write_csv(tmp_path / 'a.csv', header)}?label=label&window=20")
        config = Config(data=data, training=TrainingSettings(rotate_deg=rotate_deg))
        made = Device(config, ME, "home", tmp_path / "run")
        done = made.work()[TrainLocally](TrainLocally(1, made.model.values().copy()))
        assert isinstance(done, LocalDeltaReady)
        return done.delta.values.tobytes()

    assert learned(10.0) == learned(10.0)
    assert learned(10.0) != learned(0.0)
    with pytest.raises(ConfigError, match=r"training.rotate_deg is 10: no three channels .* named are one, two, three"):
        learned(10.0, "one,two,three")


def test_a_restart_goes_on_with_the_batch_norm_that_stays_on_the_device(tmp_path: Path) -> None:
    data = DataSection(spec=f"csv:{write_csv(tmp_path / 'a.csv', 'ax,ay,az')}?label=label&window=20")
    config = Config(data=data, training=TrainingSettings(batch_norm="own"))
    first = Device(config, ME, "home", tmp_path / "run")
    parameters = first.model.values().copy()
    assert isinstance(first.work()[TrainLocally](TrainLocally(1, parameters)), LocalDeltaReady)
    ModelCache(tmp_path / "run").save(CachedModel(parameters, 1, first.schema_hash, "home"))
    again = Device(config, ME, "home", tmp_path / "run")
    assert not torch.equal(again.model.own_state()["0.running_mean"], first.model.own_state()["0.running_mean"])
    again.restore()
    for name, tensor in again.model.own_state().items():
        assert torch.equal(tensor, first.model.own_state()[name]), name
    again.export(tmp_path / "global.safetensors", 1, parameters)
    arrays, _ = read_safetensors(tmp_path / "global.safetensors")
    assert np.array_equal(arrays["0.running_mean"], again.model.own_state()["0.running_mean"].numpy())
    assert read_description(tmp_path / "global.safetensors").own_batch_norm
    assert again.losses(8) is None
    with pytest.raises(ConfigError, match="a cloud learns from whole models"):
        Device(msgspec.structs.replace(config, cloud=CloudSection(address="h:1")), ME, "home", tmp_path / "run")


def test_what_is_recorded_between_two_rounds_is_trained_in_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "rec"
    folder.mkdir()
    write_csv(folder / "a.csv", "ax,ay,az")
    config = Config(
        data=DataSection(spec=f"csv:{folder}?label=label&window=20&classes=a,b&watch=100"),
        round=RoundSection(theta="samples"),
    )
    watching = Device(config, ME, "home", tmp_path / "run")
    parameters = watching.model.values().copy()
    train = watching.work()[TrainLocally]
    first = train(TrainLocally(1, parameters))
    write_csv(folder / "b.csv", "ax,ay,az")
    os.utime(folder / "b.csv", (1.0, 1.0))
    second = train(TrainLocally(2, parameters))
    assert isinstance(first, LocalDeltaReady)
    assert isinstance(second, LocalDeltaReady)
    assert second.training.samples == len(watching.train) == 2 * first.training.samples
    assert (first.delta.theta, second.delta.theta) == (first.training.samples, second.training.samples)
    for wrong in (
        {"data": DataSection(spec=config.data.spec, split="iid", shard="1/2")},
        {"cloud": CloudSection(address="h:1")},
    ):
        with pytest.raises(ConfigError, match="watch= goes with neither --shard nor a cloud"):
            Device(msgspec.structs.replace(config, **wrong), ME, "home", tmp_path / "run")


def targets_of_device(path: Path, name: str, config: Config | None = None, **arrays: np.ndarray) -> Device:
    x = np.random.default_rng(0).normal(size=(60, 16, 2))
    np.savez(path / f"{name}.npz", **{"x": x, "subject": np.arange(60) // 6} | arrays)
    given = msgspec.structs.replace(config or Config(), data=DataSection(spec=str(path / f"{name}.npz")))
    return Device(given, ME, "home", path / name)


def test_other_targets_are_another_task_and_the_line_says_so(tmp_path: Path) -> None:
    y, flags = np.linspace(60, 180, 60) + 0.1, np.stack([np.arange(60) % 2, np.arange(60) % 3 == 0], axis=1) * 1
    pulse, names = {"targets": np.array(["pulse"])}, np.array(["a", "b"])
    devices = [
        targets_of_device(tmp_path, "bpm", y=y, **pulse, units=np.array(["bpm"])),
        targets_of_device(tmp_path, "hz", y=y, **pulse, units=np.array(["Hz"])),
        targets_of_device(tmp_path, "labels", y=flags, targets=names),
        targets_of_device(tmp_path, "classes", y=np.arange(60) // 2 % 2, classes=names),
    ]
    assert len({each.schema_hash for each in devices}) == 4
    assert devices[2].model.schema_hash == devices[3].model.schema_hash
    assert [each.summary for each in devices] == [
        "lenet 2x16 -> numbers: pulse (bpm)", "lenet 2x16 -> numbers: pulse (Hz)", "lenet 2x16 -> labels: a, b",
        "lenet 2x16 -> a, b",
    ]  # fmt: skip
    assert task_difference(devices[2].summary, devices[3].summary) == (
        "your targets (labels: a, b) differ from the mesh's (a, b)"
    )


def test_numbers_have_no_accuracy_to_wait_for(tmp_path: Path) -> None:
    y = np.linspace(60, 180, 60) + 0.1
    with pytest.raises(ConfigError, match="a has numbers; expected r2=N or mae=N, or no-better=N"):
        targets_of_device(tmp_path, "a", Config(end=EndSection(accuracy=0.9)), y=y)
    device = targets_of_device(tmp_path, "b", Config(end=EndSection(no_better=3)), y=y)
    done = device.work()[TrainLocally](TrainLocally(1, device.model.values().copy()))
    assert isinstance(done, LocalDeltaReady)
    assert done.training.loss < 10


def test_an_own_delta_is_had_again_from_the_trained_model_and_may_take_the_old_ones_memory(tmp_path: Path) -> None:
    mine = device(write_csv(tmp_path / "a.csv", "ax,ay,az"))
    work, start = mine.work(), mine.model.values().copy()
    trained = work[TrainLocally](TrainLocally(1, start))
    assert isinstance(trained, LocalDeltaReady)
    apart = work[RecallDelta](RecallDelta(1, start))
    assert isinstance(apart, DeltaRecalled)
    assert np.array_equal(apart.values, trained.delta.values)
    again = work[RecallDelta](RecallDelta(1, start, in_place=True))
    assert isinstance(again, DeltaRecalled)
    assert again.values is start
    assert np.array_equal(start, trained.delta.values)
    assert work[RecallDelta](RecallDelta(1, start)) == DeltaRecalled(1, None)  # that is no model any more


def test_what_a_training_that_was_cut_off_has_left_is_no_earlier_own_delta(tmp_path: Path) -> None:
    data = DataSection(spec=f"csv:{write_csv(tmp_path / 'a.csv', 'ax,ay,az')}?label=label&window=20")
    mine = Device(Config(data=data, training=TrainingSettings(batch_size=4)), ME, "home", tmp_path / "a")
    work, start = mine.work(), mine.model.values().copy()
    assert isinstance(work[TrainLocally](TrainLocally(1, start)), LocalDeltaReady)
    asked = []
    mine.is_paused = lambda: bool(asked.append(1)) or len(asked) > 3  # in the middle
    assert work[TrainLocally](TrainLocally(2, start + 1)) == TrainingPaused(2)
    assert work[RecallDelta](RecallDelta(1, start)) == DeltaRecalled(1, None)


def test_a_pause_before_its_first_batch_leaves_what_was_trained(tmp_path: Path) -> None:
    mine = device(write_csv(tmp_path / "a.csv", "ax,ay,az"))
    work, start = mine.work(), mine.model.values().copy()
    trained = work[TrainLocally](TrainLocally(1, start))
    assert isinstance(trained, LocalDeltaReady)
    mine.is_paused = lambda: True
    assert work[TrainLocally](TrainLocally(2, start + 1)) == TrainingPaused(2)
    recalled = work[RecallDelta](RecallDelta(1, start))
    assert isinstance(recalled, DeltaRecalled)
    assert np.array_equal(recalled.values, trained.delta.values)


def test_devices_in_other_units_train_the_same_and_in_other_quantities_do_not(tmp_path: Path) -> None:
    names = ("acc_x", "acc_y", "acc_z")
    in_g, in_ms2, turns, bare = (
        device(
            write_csv(tmp_path / f"{number}.csv", ",".join(f"{name}{unit}" for name in names)), "&units=-" * (not unit)
        )
        for number, unit in enumerate((" (g)", " (m/s^2)", " (deg/s)", ""))
    )
    assert in_g.schema_hash == in_ms2.schema_hash
    assert in_g.train.x == pytest.approx(in_ms2.train.x * 9.80665, rel=1e-5)
    assert in_g.description.channel_units == ("m/s2",) * 3
    assert turns.schema_hash != in_g.schema_hash
    assert task_difference(turns.summary, in_g.summary) == (
        "channels of other units: this mesh has them in m/s2, this device in rad/s"
    )
    assert "?units=" in task_difference(bare.summary, in_g.summary)


def test_a_state_from_before_there_were_units_goes_on_unless_its_values_were_converted(tmp_path: Path) -> None:
    in_g, in_ms2 = (
        device(write_csv(tmp_path / f"{number}.csv", "ax,ay,az"), f"&units={unit}")
        for number, unit in enumerate(("g", "m/s2"))
    )
    for made, goes_on in ((in_g, False), (in_ms2, True)):
        about = made.description.outputs, made.description.channel_names, made.description.rate_hz
        assert (hash_task(made.model.task_schema, *about) in made._origin.older_hashes) is goes_on
