"""The text of a Windows task: one command of mdl, as this user, from logon on, below the usual priority.

A task bounds no memory and sets no variable, so torch chooses its number of threads.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

from mdl.errors import ConfigError
from mdl.peers.service.unit import Service, check_word

_SPACE = "http://schemas.microsoft.com/windows/2004/02/mit/task"
# Parts of a command that the Task Scheduler replaces: %NAME%, $(Arg0).
_REPLACED = re.compile(r"%[^%]+%|\$\(")
# Below normal; 4 to 6 are normal, 10 is idle.
_PRIORITY = "8"
_SETTINGS = {
    "MultipleInstancesPolicy": "IgnoreNew",
    # `--when` decides about the battery.
    "DisallowStartIfOnBatteries": "false",
    "StopIfGoingOnBatteries": "false",
    "StartWhenAvailable": "true",
    "ExecutionTimeLimit": "PT0S",  # none; three days otherwise
    "Priority": _PRIORITY,
}


def write_task(service: Service) -> str:
    """Return the task's text, for `schtasks /Create /XML`, in ASCII.

    Raises ConfigError for a word that no task can hold.
    """
    program, *words = (_check(word) for word in service.command)
    task = ElementTree.Element("Task", xmlns=_SPACE, version="1.2")
    _add(task, "RegistrationInfo", Description=" ".join(("mdl", *service.words))[:200])
    _add(_add(task, "Triggers"), "LogonTrigger", Enabled="true")
    _add(_add(task, "Principals"), "Principal", LogonType="InteractiveToken", RunLevel="LeastPrivilege")
    _add(_add(task, "Settings", **_SETTINGS), "RestartOnFailure", Interval="PT1M", Count="5")
    where = _check(str(service.directory or Path.home()))
    _add(
        _add(task, "Actions"), "Exec", Command=program, Arguments=subprocess.list2cmdline(words), WorkingDirectory=where
    )
    ElementTree.indent(task)
    # ASCII is read correctly in whatever encoding a shell writes the file.
    body = ElementTree.tostring(task, "us-ascii", xml_declaration=False).decode()
    return f'<?xml version="1.0"?>\n{body}\n'


def how_to_install(service: Service) -> str:
    """Return what to type with the text that was printed."""
    return (
        f"save it as {service.label}.xml, then: schtasks /Create /TN {service.label} /XML {service.label}.xml; "
        f"schtasks /Run /TN {service.label} starts it at once, schtasks /Delete /TN {service.label} takes it away"
    )


def _check(word: str) -> str:
    check_word(word)
    if found := _REPLACED.search(word):
        raise ConfigError(f"service: {word[:80]!r} holds {found[0][:40]!r}, which the Task Scheduler would replace")
    return word


def _add(parent: ElementTree.Element, name: str, **texts: str) -> ElementTree.Element:
    """Add an element, with an element for each text."""
    made = ElementTree.SubElement(parent, name)
    for key, text in texts.items():
        ElementTree.SubElement(made, key).text = text
    return made
