"""What a device would bring is built as a peer builds it, in a process apart, and compared with what others train."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mdl.config import Config, load_config
from mdl.peers.doctor.device import OwnModel, build_own_model, check_own_model
from mdl.peers.doctor.mesh import Sight
from mdl.peers.doctor.network import Severity
from mdl.peers.edge.device import Device
from mdl.protocol.delta import Contributor
from mdl.protocol.vocabulary import PeerInfo, Role

OWN = OwnModel("aaaa", "lenet 9x128 -> walking, standing")
NOTHING = Sight([], [], [], {}, {}, None, None, "")


def config(spec: str, model: str = "lenet") -> Config:
    return load_config(None, {"data.spec": spec, "model.name": model}, [])


def known(**schemas: str) -> Sight:
    infos = [PeerInfo(name, 1, Role.TRAINER, "192.0.2.7", 5, schema) for name, schema in schemas.items()]
    return replace(NOTHING, known=infos)


def test_what_a_device_brings_has_the_hash_that_its_peer_tells(tmp_path: Path) -> None:
    settings = config("motion?people=2&windows=40", "fcn")
    own = build_own_model(settings)
    device = Device(settings, Contributor("ann", 1), "home", tmp_path)
    assert own == OwnModel(device.schema_hash, device.summary)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "why"),
    [(config("csv:no-such-folder"), "no such file"), (config("motion", "no_such_module:make"), "cannot be imported")],
)
def test_a_model_that_cannot_be_built_is_told_in_a_line(settings: Config, why: str) -> None:
    own = build_own_model(settings)
    finding = check_own_model(own, NOTHING)
    assert (finding.check, finding.verdict) == ("model", Severity.FAIL)
    assert why in finding.told
    assert "\n" not in finding.told


def test_the_same_model_is_in_order_and_another_one_is_not() -> None:
    assert check_own_model(OWN, known(ann="aaaa", bob="")).verdict is Severity.OK
    assert check_own_model(OWN, NOTHING).verdict is Severity.OK
    differs = check_own_model(OWN, known(ann="aaaa", bob="bbbb"))
    assert differs.verdict is Severity.FAIL
    assert "bob train another model" in differs.told
    assert differs.do


def test_data_that_take_too_long_are_worth_a_word() -> None:
    assert check_own_model(None, NOTHING).verdict is Severity.NOTE
