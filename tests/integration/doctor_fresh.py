"""More faults for `mdl doctor` to name, thought up after its checks were written.

Those of APART take more than the own host's way (an address twice, a member that hangs): each on a LAN of its own.
"""

import os
import signal

from tests.integration.doctor_case import MEMBER_NAME, UNPRIVILEGED, on_tmpfs
from tests.integration.lan import ip, run

# A process whose clock is off by so many seconds.
CLOCK = """
import datetime, sys, time
off_s = float(sys.argv.pop(1))
seconds, nanoseconds, real = time.time, time.time_ns, datetime.datetime
time.time = lambda: seconds() + off_s
time.time_ns = lambda: nanoseconds() + int(off_s * 1e9)
class Shifted(real):
    @classmethod
    def now(cls, tz=None):
        return real.now(tz) + datetime.timedelta(seconds=off_s)
datetime.datetime = Shifted
from mdl.__main__ import main
main()
"""
NOBODY = 65534


def in_switch(case, port, rule):
    """Of what comes into the switch there."""
    table = f"netdev mdl{case.host}p{port}"
    chain = f"{{ type filter hook ingress device v{port} priority 0; }}"
    run(f"ip netns exec {case.net.switch} nft add table {table}")
    run(f"ip netns exec {case.net.switch} nft add chain {table} in {chain}")
    run(f"ip netns exec {case.net.switch} nft add rule {table} in {rule}")


def readdress(case, *addresses):
    ip(f"-n {case.name} addr flush dev eth0")
    for address in addresses:
        ip(f"-n {case.name} addr add {address} dev eth0")
    ip(f"-n {case.name} route replace 224.0.0.0/4 dev eth0")


# -- addresses and ways -----------------------------------------------------------------------------------------------


def wrong_netmask(case):
    case.without_ipv6()
    readdress(case, f"10.213.0.{case.host + 101}/31")


def no_lease(case):
    """DHCP gave nothing, so that the system made an address up."""
    case.without_ipv6()
    readdress(case, f"169.254.7.{case.host}/16")


def cable_unplugged(case):
    ip(f"-n {case.net.switch} link set v{case.host} down")


def no_address(case):
    """The cable is in, and that is all."""
    case.without_ipv6()
    ip(f"-n {case.name} -4 addr flush dev eth0")


def vpn_takes_lan(case):
    """A VPN with a route of its own for all addresses of the LAN."""
    case.open_tunnel()
    ip(f"-n {case.name} route add 10.213.0.0/25 dev tun0")


def duplicate_address(case):
    """Host 2 has it, too."""
    readdress(case, f"{case.net.hosts[2]}/24")


# -- firewalls and what gets lost -------------------------------------------------------------------------------------


def mdns_port_taken_on_loopback(case):
    case.hold("udp", 5353, "127.0.0.1")


def all_blocked_but_answers(case):
    """Neither in nor out, as paranoid firewalls begin."""
    case.nft("output oif != lo ct state new drop", "input iif != lo ct state new drop")


def udp_blocked(case):
    case.nft("input udp dport != 5353 drop")


def second_port_blocked(case):
    """The member's firewall was opened for the port that its user gave, and not for the one beside it."""
    case.nft(f"input ip saddr {case.address} tcp dport != 5750 tcp flags syn drop", host=0)


def black_hole_out(case):
    """Large packets of this host alone are lost."""
    in_switch(case, case.host, "ip length > 1300 drop")


def black_hole_without_ping(case):
    black_hole_out(case)
    case.nft(f"input ip saddr {case.address} icmp type echo-request drop", host=0)


def heavy_loss(case):
    in_switch(case, case.host, "numgen random mod 100 < 30 drop")
    in_switch(case, 0, f"ip daddr {case.address} numgen random mod 100 < 30 drop")


def slow_link(case):
    case.net.limit(case.host, 0.25)


def without_ipv4(case):
    """Devices of one link meet by link-local addresses then."""
    ip(f"-n {case.name} -4 addr flush dev eth0")


def heavy_loss_by_ipv6(case):
    without_ipv4(case)
    in_switch(case, case.host, "numgen random mod 100 < 20 drop")
    case.nft("input iif eth0 numgen random mod 100 < 20 drop")


def slow_link_by_ipv6(case):
    without_ipv4(case)
    case.net.limit(case.host, 0.25)


def black_hole_by_ipv6(case):
    without_ipv4(case)
    in_switch(case, case.host, "ip6 length > 1300 drop")


def member_hangs(case):
    case.member.signal(signal.SIGSTOP)
    case.words += ["--peer", case.member_address]


# -- this machine -----------------------------------------------------------------------------------------------------


def clock_hours_behind(case):
    case.before += ["-c", CLOCK, "-7200"]


def clock_hours_ahead(case):
    case.before += ["-c", CLOCK, "7200"]


def clock_of_1970(case):
    case.before += ["-c", CLOCK, "-1700000000"]


def full_inodes(case):
    state = on_tmpfs(case, "size=90m,nr_inodes=3")
    (state / "one").touch()
    (state / "two").touch()


def read_only_disk(case):
    """As a card that has failed."""
    run(f"mount -o remount,ro {on_tmpfs(case, 'size=90m')}")


def broken_library(case):
    fake = case.folder / "fake" / "torch"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text("raise ImportError('libgomp.so.1: cannot open shared object file')\n")
    case.variables["PYTHONPATH"] = str(fake.parent)


def no_key_rights(case):
    """An earlier start with sudo made the folder."""
    os.chown(case.settings, NOBODY, NOBODY)
    case.rights = UNPRIVILEGED


def damaged_key(case):
    (case.settings / "device.key").write_bytes(bytes(65))


# -- who it is --------------------------------------------------------------------------------------------------------


def same_name(case):
    """Two new machines that are both called raspberrypi."""
    case.hostname = MEMBER_NAME


def copied_card(case):
    case.hostname = MEMBER_NAME
    (case.settings / "device.key").write_bytes((case.member.folder / "config/mdl/device.key").read_bytes())


def revoked_device(case):
    (case.settings / "device.key").write_text(case.member.revoked.hex())


def former_code(case):
    case.code = case.member.former


def other_models(case):
    """Two trainers of the mesh do not train the same."""
    start_trainers(case, ann="lenet", bob="cnn-lstm")


def other_model_here(case):
    """What would be started on this device is not what the others train."""
    from tests.integration import product

    start_trainers(case, ann="lenet", bob="lenet")
    case.words += ["--data", product.SMALL, "--model", "fcn"]


def start_trainers(case, **models):
    from tests.integration import product

    for name, model in models.items():
        before = ("ip", "netns", "exec", case.net.names[2])
        home = product.Home(case.folder / name, case.folder / "cache", before)
        case.homes.append(home)
        words = ("--data", product.SMALL, "--model", model, "--out", home.folder / "run", "--name", name)
        peer = home.start("peer", "--code", case.code, *words)
        assert product.until(lambda peer=peer: "windows of" in peer.told), peer.told


FRESH = {
    wrong_netmask: ("way", "fail", 4),
    no_lease: ("way", "fail", 4),
    cable_unplugged: ("interfaces", "fail", 4),
    no_address: ("interfaces", "fail", 4),
    vpn_takes_lan: ("way", "fail", 4),
    mdns_port_taken_on_loopback: ("multicast", "fail", 4),
    all_blocked_but_answers: ("multicast", "fail", 4),
    udp_blocked: ("datagrams", "note", 0),
    second_port_blocked: ("port", "fail", 4),
    black_hole_out: ("mtu", "fail", 4),
    black_hole_without_ping: ("mtu", "fail", 4),
    heavy_loss: ("path", "note", 0),
    slow_link: ("path", "note", 0),
    heavy_loss_by_ipv6: ("path", "note", 0),
    slow_link_by_ipv6: ("path", "note", 0),
    black_hole_by_ipv6: ("mtu", "fail", 4),
    clock_hours_behind: ("clock", "note", 0),
    clock_hours_ahead: ("clock", "note", 0),
    clock_of_1970: ("clock", "note", 0),
    full_inodes: ("disk", "fail", 4),
    read_only_disk: ("disk", "fail", 4),
    broken_library: ("torch", "fail", 4),
    no_key_rights: ("device", "fail", 4),
    damaged_key: ("device", "fail", 4),
    same_name: ("device", "note", 0),
    copied_card: ("device", "fail", 4),
    revoked_device: ("device", "fail", 4),
    former_code: ("code", "fail", 4),
}
APART = {
    duplicate_address: ("address", "fail", 4),
    member_hangs: ("port", "fail", 4),
    other_models: ("member", "note", 0),
    other_model_here: ("model", "fail", 4),
}
