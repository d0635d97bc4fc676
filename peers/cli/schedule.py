"""`mdl schedule`: explains the order of the chain, and plays other orders. Slow imports come late."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mdl.config import LONGEST_S, MANY
from mdl.errors import UnfinishedError
from mdl.peers.command.options import (
    AsJson,
    Code,
    CommandGroup,
    CsvFile,
    Family,
    FirstSeed,
    Interface,
    Join,
    Loopback,
    MeshName,
    finite,
    print_json,
    tell,
)
from mdl.peers.command.progress import progress_bar
from mdl.scheduler.policies.registry import OPTIMAL, SHARES, name_policies, quick_policies
from mdl.writing import check_writable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from rich.console import Console

    from mdl.own import Own
    from mdl.peers.view.schedule_source import Drawing
    from mdl.scheduler.explain.decide_lines import Decider
    from mdl.scheduler.rounds.participation import ParticipationRule

app = CommandGroup("Show, compare and change the order of aggregations.")

_SOURCE_HELP = (
    "Read a scenario file, a run directory, or FAMILY:N:SEED (dynamic:9:17); by default the live mesh (--mesh)."
)
_NAMES = name_policies(f"{SHARES} (or {SHARES}-int8 ...)", OPTIMAL, last="and")
_POLICIES_HELP = f"Play these policies, with commas: {_NAMES}, policy files, own functions. The default is "
_RULES_HELP = "Judge third, all, deadline, k-of-n, half, best-ratio or bandit (bounds as in third?wait_for=0.5)."
Source = Annotated[str | None, typer.Argument(help=_SOURCE_HELP, show_default=False)]
Index = Annotated[int, typer.Option(help="Take this scenario of a file, counted from 0.", min=0, max=MANY)]
Round = Annotated[
    int | None, typer.Option("--round", help="Take this round of a run; the last by default.", min=1, max=MANY)
]
# The most of a file that is read again (mdl.devices.scenario) holds about as many of nine devices.
MOST_SCENARIOS = 10_000
# Both spellings are natural.
_POLICIES = ("--policies", "--policy")
Policies = Annotated[str | None, typer.Option(*_POLICIES, help=f"{_POLICIES_HELP}all that are quick.")]
Wait = Annotated[
    float,
    typer.Option(help="Wait so many seconds for the live mesh's answer.", min=0.1, max=LONGEST_S, callback=finite),
]


@app.command()
def show(
    source: Source = None,
    policy: Annotated[
        str | None, typer.Option(help="Play a scenario, or a round rebuilt as one, under this policy.")
    ] = None,
    index: Index = 0,
    round_number: Round = None,
    out: Annotated[Path | None, typer.Option(help="Also write the chart as FILE.svg or FILE.png.")] = None,
    mesh: MeshName = None,
    code: Code = None,
    join: Join = None,
    interface: Interface = None,
    loopback: Loopback = None,
    wait: Wait = 5.0,
    as_json: AsJson = False,
) -> None:
    """Draw a schedule, with the reason of each decision.

    A round that was really run is drawn as it was recorded; with --policy it is rebuilt as a scenario and played.
    A scenario is played, under the policy of the configuration by default. Q-values are shown for policies that have
    them (dqn).
    """
    from mdl.own import own_policy
    from mdl.peers.view.schedule_source import draw_subject, find_subject, looker

    look = looker(mesh, code, join, interface, loopback, wait)
    _check_out(out)
    own = own_policy(policy) if policy else None
    drawn = draw_subject(find_subject(source, index, round_number, look), own, _usual_policy())
    if out is not None:
        from mdl.scheduler.explain.draw_chart import write_picture

        write_picture(drawn.chart, out)
    if as_json:
        print_json(_describe(drawn) | ({"out": str(out)} if out else {}))
        return
    _print_drawing(drawn)
    if out is not None:
        tell(f"written: {out}")


def can_solve(n: int, family: str) -> bool:
    """Return True if the optimum can be found for so many devices of this family."""
    return n <= 12 and family != "dying"


@app.command()
def compare(
    policies: Policies = None,
    family: Family = "dynamic",
    n: Annotated[int, typer.Option("--n", "-n", help="Devices.", min=2, max=256)] = 9,
    count: Annotated[int, typer.Option(help="Draw so many scenarios.", min=1, max=MANY)] = 200,
    seed_from: FirstSeed = 0,
    scenarios: Annotated[Path | None, typer.Option(help="Play these scenarios (JSON lines) instead.")] = None,
    csv: CsvFile = None,
    as_json: AsJson = False,
) -> None:
    """Play the same scenarios under several policies.

    It shows the time until all devices have the result, with spread and over the optimum, energy and losses.
    """
    from mdl.files.figures import write_table
    from mdl.peers.view.compare import compare as compare_policies
    from mdl.peers.view.compare import describe_comparison, list_results, show_comparison
    from mdl.peers.view.schedule_source import draw_scenarios

    if csv is not None:
        check_writable(csv)
    names = _parse_policies(policies or ",".join([*quick_policies(scenarios is None and can_solve(n, family)), SHARES]))
    what, planned, drawn = draw_scenarios(family, n, count, seed_from, scenarios)
    with progress_bar() as show:
        found = compare_policies(names, what, drawn, planned, lambda played, of: show("scenarios", played, of))
    if csv is not None:
        write_table(csv, list_results(found))
    if not as_json:
        show_comparison(found, _console())
    if found.interrupted:
        told = f"interrupted: {found.played} of {found.planned} scenarios were played by all policies"
        raise UnfinishedError(told, 130, describe_comparison(found))
    if as_json:
        print_json(describe_comparison(found))


@app.command()
def rounds(
    rules: Annotated[
        str,
        typer.Option(help="With commas, the first is compared with: " + _RULES_HELP),
    ] = "third,all,deadline,k-of-n,best-ratio",
    family: Annotated[
        str, typer.Option(help="Worlds, with commas: dynamic, varied, recorded-tuning, recorded-held-out.")
    ] = "dynamic",
    n: Annotated[str, typer.Option("--n", "-n", help="Devices, with commas.")] = "9",
    size: Annotated[str, typer.Option(help="MB of a delta, with commas.")] = "10",
    count: Annotated[int, typer.Option(help="Play so many worlds of each.", min=1, max=MOST_SCENARIOS)] = 20,
    seed_from: FirstSeed = 0,
    recordings: Annotated[
        Path | None, typer.Option(help="Table of recorded phones (csv, csv.gz), for the recorded worlds.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare rules on which devices take part in a round.

    Plays many rounds in a row. Shows the seconds to levels of progress, fairness and energy.
    """
    from mdl.peers.view.compare import describe_judged, judge_rules, parse_rules, parse_wanted, show_judged

    names = parse_rules(rules)
    wanted = parse_wanted(family, n, size, count, seed_from, recordings is not None)
    with progress_bar() as show:
        judged = judge_rules(names, wanted, recordings, lambda played, of: show("worlds", played, of))
    if not as_json:
        show_judged(judged, _console())
    if judged.interrupted:
        played = sum(cell.worlds for cell in judged.cells)
        raise UnfinishedError(f"interrupted: {played} worlds were played by all rules", 130, describe_judged(judged))
    if as_json:
        print_json(describe_judged(judged))


@app.command("what-if")
def what_if(
    source: Source = None,
    assign: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Change DEVICE.FIELD=VALUE: battery, charging, link, merge, busy (0-5), ready, kind, class, dies, "
            "energy, receives.",
        ),
    ] = None,
    policies: Annotated[
        str | None, typer.Option(*_POLICIES, help=f"{_POLICIES_HELP}the one of the configuration, and shares.")
    ] = None,
    index: Index = 0,
    round_number: Round = None,
    mesh: MeshName = None,
    code: Code = None,
    join: Join = None,
    interface: Interface = None,
    loopback: Loopback = None,
    wait: Wait = 5.0,
    as_json: AsJson = False,
) -> None:
    """Change devices of a scenario, and see the schedule change.

    The orders are those of all devices. A last line tells which of them a mesh would not wait for, and why.
    """
    from mdl.peers.view.schedule_source import as_playable, find_subject, looker
    from mdl.scheduler.explain.draw_chart import close_round, describe_closed, tell_closed
    from mdl.scheduler.explain.what_if import apply_changes, describe_outcomes, parse_changes, play_both, show_outcomes

    names = _parse_policies(policies or f"{_usual_policy()},{SHARES}")
    look = looker(mesh, code, join, interface, loopback, wait)
    subject = as_playable(find_subject(source, index, round_number, look))
    changes = parse_changes(assign or [], subject.names)
    changed = apply_changes(subject.scenario, changes)
    outcomes = play_both(subject.scenario, changed, names, subject.names)
    rule = _usual_rule()
    before, after = (close_round(each, subject.names, rule, subject.number) for each in (subject.scenario, changed))
    if as_json:
        told = describe_outcomes(subject.title, changes, outcomes, subject.names)
        told |= {"takes_part": describe_closed(before, after), "lost": list(subject.lost)}
        print_json(told | {"estimated": list(subject.estimates)})
        return
    console = _console()
    show_outcomes(subject.title, changes, outcomes, subject.names, console)
    console.print()
    for text in [*(f"recorded without {text}" for text in subject.lost), *tell_closed(before, after)]:
        console.print(text)
    for text in subject.estimates:
        console.print(f"estimated: {text}", style="dim")


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(help="Read the run directory of `mdl up`, or of one agent.")],
    round_number: Annotated[
        int | None, typer.Option("--round", help="Play only this round; all by default.", min=1, max=MANY)
    ] = None,
    policies: Policies = None,
    csv: CsvFile = None,
    as_json: AsJson = False,
) -> None:
    """Play a real run's rounds again under other policies."""
    from mdl.files.figures import write_table
    from mdl.scheduler.explain.replay_run import describe_replay, list_replay, replay_run, show_replay

    names = _parse_policies(policies or ",".join(quick_policies()))
    _check_run(run)
    if csv is not None:
        check_writable(csv)
    found = replay_run(run, round_number, names)
    if csv is not None:
        write_table(csv, list_replay(found))
    if as_json:
        print_json(describe_replay(found))
    else:
        show_replay(found, _console())


@app.command()
def scenarios(
    run: Annotated[
        Path | None, typer.Argument(help="Rebuild the rounds of this run directory.", show_default=False)
    ] = None,
    family: Family = "dynamic",
    n: Annotated[int, typer.Option("--n", "-n", help="Devices.", min=2, max=256)] = 9,
    count: Annotated[int, typer.Option(help="Draw so many scenarios.", min=1, max=MOST_SCENARIOS)] = 200,
    seed_from: FirstSeed = 0,
    out: Annotated[Path, typer.Option(help="Write JSON lines here, one scenario each.")] = Path("scenarios.jsonl"),
    as_json: AsJson = False,
) -> None:
    """Write scenarios to a file.

    They are for other programs and `compare --scenarios`: drawn from a family, or a run's rounds.
    """
    from mdl.devices.scenario import save_scenarios
    from mdl.peers.view.schedule_source import draw_scenarios, run_scenarios

    if run is not None:
        _check_run(run)
    check_writable(out)
    what, _, found = run_scenarios(run) if run else draw_scenarios(family, n, count, seed_from, None)
    written = list(found)
    save_scenarios(written, out)
    if as_json:
        print_json({"scenarios": what, "written": len(written), "out": str(out)})
    else:
        print(f"{out}: {what}, {len(written)} scenarios")


@app.command()
def decide(
    policy: Annotated[str, typer.Option(help=f"{name_policies()}.")] = "greedy",
    as_json: Annotated[bool, typer.Option("--json", help="Change nothing: answers are JSON in any case.")] = False,
) -> None:
    """Answer observations from stdin with decisions on stdout.

    Both are one JSON object a line, until the end of stdin.

    {"id", "t", "mb", "lat", "devices": [{"id", "state", "bw", ...}]} is answered by {"pair": [sender, receiver],
    "reason"}, {"wait": true, "reason"} or {"error"}; docs/schedule-decide.md has all fields.
    """
    from mdl.own import own_policy
    from mdl.scheduler.explain.decide_lines import Decider
    from mdl.scheduler.given import policy_of

    decider = Decider(policy_of(own_policy(policy)), lambda text: tell(f"mdl: {text}"))
    try:
        answer_all(decider, sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        sys.stderr.close()  # no program reads the answers any more: exit without a word
        raise typer.Exit(0) from None


def answer_all(decider: Decider, lines: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the lines end. Raises BrokenPipeError if no program reads the answers any more."""
    for line in _read_lines(lines):
        answers.write(decider.answer(line) + b"\n")
        answers.flush()


def _read_lines(lines: BinaryIO) -> Iterator[bytes]:
    """Yield the lines; of one that is too long only the beginning, which is still too long."""
    from mdl.scheduler.explain.decide_lines import MAX_LINE_BYTES

    while line := lines.readline(MAX_LINE_BYTES + 1):
        rest = line
        while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = lines.readline(MAX_LINE_BYTES + 1)
        yield line


def _describe(drawn: Drawing) -> dict[str, object]:
    import msgspec

    told: dict[str, object] = {"policy": drawn.policy, "recorded": drawn.is_recorded}
    told |= {
        "lost": list(drawn.lost),
        "estimated": list(drawn.estimates),
        "devices": msgspec.to_builtins(drawn.devices),
    }
    return {**told, **msgspec.to_builtins(drawn.chart)}


def _print_drawing(drawn: Drawing) -> None:
    from mdl.scheduler.explain.draw_chart import draw_devices, show_chart

    console = _console()
    show_chart(drawn.chart, console)
    console.print()
    for text in drawn.lost:
        console.print(f"without {text}")
    console.print(draw_devices(drawn.devices))
    for text in drawn.estimates:
        console.print(f"estimated: {text}", style="dim")


def _parse_policies(text: str) -> tuple[str | Own, ...]:
    from mdl.own import own_policy
    from mdl.scheduler.explain.watched_play import parse_policies

    return parse_policies(text, own_policy)


def _usual_policy() -> str:
    """Return an agent's default policy."""
    from mdl.config import RoundSection

    return RoundSection().policy


def _usual_rule() -> ParticipationRule:
    """Return the rule by which a mesh closes its rounds by default."""
    from mdl.config import RoundSection
    from mdl.scheduler.rounds.participation import Bounds, mesh_rule

    usual = RoundSection()
    return mesh_rule(usual.rule, Bounds(usual.wait_for, usual.grace_s, float(usual.left_out_at_most)))


def _check_run(run: Path) -> None:
    from mdl.errors import ConfigError

    if not run.is_dir():
        raise ConfigError(f"{run}: no such directory; expected the run directory of `mdl up`, or of an agent")


def _check_out(out: Path | None) -> None:
    """Check the name of the picture before anything is played."""
    from mdl.errors import ConfigError

    if out is not None and out.suffix.lower() not in (".svg", ".png"):
        raise ConfigError(f"--out {out}: expected a name that ends in .svg or .png")


def _console() -> Console:
    """Return a console without markup: devices and directories may have any name."""
    from mdl.peers.view.terminal import PlainConsole

    return PlainConsole()
