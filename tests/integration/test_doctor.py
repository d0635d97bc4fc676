"""`mdl doctor` on machines and networks that are in order, and on such that are not: one fault a host, on real LANs."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration import doctor_faults as faults
from tests.integration import lan
from transport.trust.keys import new_join_code

pytestmark = [
    pytest.mark.skipif(bool(lan.why_not()), reason=lan.why_not() or ""),
    pytest.mark.skipif(faults.why_not() is not None, reason=faults.why_not() or ""),
]
# Their links, their mesh and their processes at once; the rest is in benchmarks/doctor.py.
HERE = [
    faults.healthy,
    faults.multicast_out_blocked,
    faults.mdns_port_taken,
    faults.member_drops,
    faults.answers_blocked,
    faults.out_blocked,
    faults.other_code,
    faults.other_version,
    faults.black_hole,
    faults.few_descriptors,
    faults.broken_torch,
    faults.other_subnet,
    faults.multicast_lost_in_switch,
]


def test_each_fault_is_named_and_a_healthy_machine_is_let_be(tmp_path):
    code = new_join_code("home")
    with lan.Lan(len(HERE) + 1) as net:
        member = faults.start_member(net, tmp_path, code)

        def run(host):
            fault = HERE[host - 1]
            return fault, faults.examine(net, host, fault, tmp_path / fault.__name__, code)

        try:
            with ThreadPoolExecutor(4) as side_by_side:
                results = list(side_by_side.map(run, range(1, len(HERE) + 1)))
        finally:
            member.close()
    for fault, (exit_code, told, errors, _) in results:
        check, verdict, expected = faults.FAULTS.get(fault, ("", "", 0))
        found = faults.names(told)
        assert exit_code == expected, (fault.__name__, told, errors)
        assert told["works"] is (expected == 0)
        assert "Traceback" not in errors, fault.__name__
        assert len(errors.splitlines()) <= 1, (fault.__name__, errors)
        if fault is faults.healthy:
            assert not [each for each in found if each[1] == "fail"]
        else:
            assert (check, verdict) in found, (fault.__name__, told)
        for each in told["findings"]:
            assert each["do"] or each["verdict"] != "fail", each


def test_a_guest_network_that_keeps_its_clients_apart_is_named(tmp_path):
    code = new_join_code("home")
    with lan.Lan(2) as net:
        member = faults.start_member(net, tmp_path, code)
        try:
            exit_code, told, _, _ = faults.examine(net, 1, faults.guest_network, tmp_path / "case", code)
        finally:
            member.close()
    assert exit_code == 4
    (failed,) = [each for each in told["findings"] if each["verdict"] == "fail"]
    assert failed["check"] in ("way", "port")  # a busy machine has not given its neighbour up by then
    assert "isolation" in failed["do"]


def test_two_doctors_meet_without_multicast_and_nobody_else(tmp_path):
    """Each was told of the other's address alone: the way is in order both ways."""
    code = new_join_code("home")
    with lan.Lan(2, multicast=False) as net, ThreadPoolExecutor(2) as both:

        def towards(other):
            def fault(case):
                case.nft("output ip daddr 224.0.0.251 drop")
                case.words += ["--peer", net.hosts[other], "--wait", 30]

            return fault

        results = list(
            both.map(lambda host: faults.examine(net, host, towards(1 - host), tmp_path / str(host), code), (0, 1))
        )
    for exit_code, told, errors, _ in results:
        assert exit_code == 4, errors  # multicast alone
        assert {each["check"] for each in told["findings"] if each["verdict"] == "fail"} == {"multicast"}, told
        assert any(each["check"] == "member" and "answers" in each["told"] for each in told["findings"]), told


def test_nobody_else_is_exit_code_3(tmp_path):
    with lan.Lan(1) as net:
        exit_code, told, _, _ = faults.examine(net, 0, faults.healthy, tmp_path / "case", new_join_code("home"))
    assert exit_code == 3
    assert ("members", "fail") in faults.names(told)
