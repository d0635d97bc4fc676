"""`mdl doctor` on machines and networks that are in order, and on such that are not: one fault a host, on real LANs."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration import doctor_case, doctor_faults, doctor_fresh, doctor_healthy, doctor_homes, lan

pytestmark = [
    pytest.mark.skipif(bool(lan.why_not()), reason=lan.why_not() or ""),
    pytest.mark.skipif(doctor_case.why_not() is not None, reason=doctor_case.why_not() or ""),
]
EXPECTED = doctor_faults.FAULTS | doctor_fresh.FRESH
# Their links, their mesh, their devices and their processes at once; the rest is in `python -m benchmarks doctor`.
HERE = [
    doctor_healthy.plain,
    doctor_healthy.unprivileged,
    doctor_healthy.vpn_beside,
    doctor_healthy.second_network,
    doctor_healthy.ipv6_alone,
    doctor_healthy.firewall_with_its_ports_open,
    doctor_faults.multicast_out_blocked,
    doctor_faults.mdns_port_taken,
    doctor_faults.member_drops,
    doctor_faults.answers_blocked,
    doctor_faults.other_code,
    doctor_faults.other_version,
    doctor_faults.few_descriptors,
    doctor_faults.broken_torch,
    doctor_faults.other_subnet,
    doctor_faults.multicast_lost_in_switch,
    doctor_fresh.second_port_blocked,
    doctor_fresh.udp_blocked,
    doctor_fresh.black_hole_without_ping,
    doctor_fresh.vpn_takes_lan,
    doctor_fresh.clock_hours_behind,
    doctor_fresh.no_key_rights,
    doctor_fresh.same_name,
    doctor_fresh.revoked_device,
    doctor_fresh.black_hole_by_ipv6,
]


@pytest.mark.slow
def test_each_fault_is_named_and_a_healthy_machine_is_let_be(tmp_path):
    with lan.Lan(len(HERE) + 1) as net:
        member = doctor_case.start_member(net, tmp_path)

        def run(host):
            fault = HERE[host - 1]
            return fault, doctor_case.examine(net, host, fault, tmp_path / fault.__name__, member)

        try:
            with ThreadPoolExecutor(4) as side_by_side:
                results = list(side_by_side.map(run, range(1, len(HERE) + 1)))
        finally:
            member.close()
    for fault, (exit_code, told, errors, _) in results:
        check, verdict, expected = EXPECTED.get(fault, ("", "", 0))
        found = doctor_case.names(told)
        assert exit_code == expected, (fault.__name__, told, errors)
        assert told.get("works") is (expected == 0), (fault.__name__, told, errors)
        assert "Traceback" not in errors, fault.__name__
        assert len(errors.splitlines()) <= 1, (fault.__name__, errors)
        if fault in doctor_healthy.HEALTHY:
            assert not [each for each in found if each[1] == "fail"]
        else:
            assert (check, verdict) in found, (fault.__name__, told)
        for each in told["findings"]:
            assert each["do"] or each["verdict"] != "fail", each


def check_named(fault, expected, result):
    """That the doctor names the fault, or says which two causes are left."""
    check, verdict, wanted = expected
    exit_code, told, errors, _ = result
    assert exit_code == wanted, (fault.__name__, told, errors)
    assert "Traceback" not in errors, fault.__name__
    said = " ".join(each["told"] for each in told["findings"] if (each["check"], each["verdict"]) == (check, verdict))
    assert all(word in said for word in doctor_homes.WORDS[fault]), (fault.__name__, told)
    for each in told["findings"]:
        assert each["do"] or each["verdict"] != "fail", each


@pytest.mark.slow
def test_each_fault_of_a_home_is_named_or_the_two_causes_that_are_left(tmp_path):
    faults = list(doctor_homes.HOMES)
    with lan.Lan(len(faults) + 1) as net:
        member = doctor_case.start_member(net, tmp_path)

        def run(host):
            fault = faults[host - 1]
            return doctor_case.examine(net, host, fault, tmp_path / fault.__name__, member)

        try:
            with ThreadPoolExecutor(4) as side_by_side:
                results = list(side_by_side.map(run, range(1, len(faults) + 1)))
        finally:
            member.close()
    for fault, result in zip(faults, results, strict=True):
        check_named(fault, doctor_homes.HOMES[fault], result)


@pytest.mark.slow
@pytest.mark.parametrize("fault", doctor_homes.APART, ids=lambda fault: fault.__name__)
def test_a_fault_of_a_whole_home_is_named_or_the_two_causes_that_are_left(tmp_path, fault):
    with lan.Lan(3) as net:
        member = doctor_case.start_member(net, tmp_path)
        try:
            result = doctor_case.examine(net, 1, fault, tmp_path / "case", member)
        finally:
            member.close()
    check_named(fault, doctor_homes.APART[fault], result)


@pytest.mark.slow
def test_an_address_that_another_machine_has_too_is_named(tmp_path):
    with lan.Lan(3) as net:
        member = doctor_case.start_member(net, tmp_path)
        try:
            exit_code, told, _, _ = doctor_case.examine(
                net, 1, doctor_fresh.duplicate_address, tmp_path / "case", member
            )
        finally:
            member.close()
    assert exit_code == 4
    assert ("address", "fail") in doctor_case.names(told)


@pytest.mark.slow
def test_a_guest_network_that_keeps_its_clients_apart_is_named(tmp_path):
    with lan.Lan(2) as net:
        member = doctor_case.start_member(net, tmp_path)
        try:
            exit_code, told, _, _ = doctor_case.examine(net, 1, doctor_faults.guest_network, tmp_path / "case", member)
        finally:
            member.close()
    assert exit_code == 4
    (failed,) = [each for each in told["findings"] if each["verdict"] == "fail"]
    assert failed["check"] in ("way", "port")  # a busy machine has not given its neighbour up by then
    assert "isolation" in failed["do"]


@pytest.mark.slow
def test_two_doctors_meet_without_multicast_and_nobody_else(tmp_path):
    """Each was told of the other's address alone: the way is in order both ways."""
    mesh = doctor_case.found_mesh(tmp_path / "mesh")
    with lan.Lan(2, multicast=False) as net, ThreadPoolExecutor(2) as both:

        def towards(other):
            def fault(case):
                case.nft("output ip daddr 224.0.0.251 drop")
                case.words += ["--peer", net.hosts[other], "--wait", 30]

            return fault

        results = list(
            both.map(lambda host: doctor_case.examine(net, host, towards(1 - host), tmp_path / str(host), mesh), (0, 1))
        )
    for exit_code, told, errors, _ in results:
        assert exit_code == 4, errors  # multicast alone
        assert {each["check"] for each in told["findings"] if each["verdict"] == "fail"} == {"multicast"}, told
        assert any(each["check"] == "member" and "answers" in each["told"] for each in told["findings"]), told


@pytest.mark.slow
def test_nobody_else_is_exit_code_3(tmp_path):
    mesh = doctor_case.found_mesh(tmp_path / "mesh")
    with lan.Lan(1) as net:
        exit_code, told, _, _ = doctor_case.examine(net, 0, doctor_healthy.plain, tmp_path / "case", mesh)
    assert exit_code == 3
    assert ("members", "fail") in doctor_case.names(told)
    kept = [path.name for path in (tmp_path / "case").rglob("*") if path.is_file()]
    assert not [name for name in kept if name.endswith(".code")], "it looks, and keeps nothing"
