"""The text of a launchd job: one command of mdl on macOS, as this user, from login on, at low priority.

launchd bounds no memory and does not tell exit codes apart: after a failure it tries again each minute.
"""

from __future__ import annotations

import plistlib
from pathlib import Path

from mdl.peers.edge.small.threads import VARIABLE
from mdl.peers.service.unit import NICE, Service, check_word
from mdl.peers.view.plain import LOG_VARIABLE

_AGAIN_S = 60
_ENDS_S = 60


def write_plist(service: Service) -> str:
    """Return the job's text, for ~/Library/LaunchAgents/mdl-NAME.plist.

    Raises ConfigError for a word that no job can hold.
    """
    log = str(Path.home() / "Library" / "Logs" / f"{service.label}.log")
    job = {
        "Label": service.label,
        "ProgramArguments": [check_word(word) for word in service.command],
        "WorkingDirectory": check_word(str(service.directory or Path.home())),
        # mdl keeps the log within bounds, which launchd does not.
        "EnvironmentVariables": {VARIABLE: str(service.threads), LOG_VARIABLE: check_word(log)},
        "StandardErrorPath": log,
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": _AGAIN_S,
        "ExitTimeOut": _ENDS_S,
        "ProcessType": "Background",
        "Nice": NICE,
        "LowPriorityIO": True,
        "Umask": 0o077,
    }
    return plistlib.dumps(job, sort_keys=False).decode()


def how_to_install(service: Service) -> str:
    """Return what to type with the text that was printed."""
    file = f"~/Library/LaunchAgents/{service.label}.plist"
    return (
        f"save it as {file}, then: launchctl bootstrap gui/$(id -u) {file}; "
        f"launchctl bootout gui/$(id -u)/{service.label} ends it"
    )
