"""Adds the commands that have modules of their own, one line each, in the order of `mdl --help`."""

from __future__ import annotations

import typer

from mdl.peers.cli import cloud, invite, look, use
from mdl.peers.cli.data import app as data_app
from mdl.peers.cli.data import register_sharing
from mdl.peers.cli.mesh import app as mesh_app
from mdl.peers.cli.mesh import register_owners
from mdl.peers.cli.schedule import app as schedule_app
from mdl.peers.cli.scheduler import app as scheduler_app
from mdl.peers.cli.service import app as service_app
from mdl.peers.cli.sim import app as sim_app
from mdl.peers.cli.sim import replay, search
from mdl.peers.command import web
from mdl.peers.command.options import DATA, LOOK, MACHINE, MESH, SCHEDULE
from mdl.peers.deeptype import commands as personal


def add_to(app: typer.Typer) -> None:
    """Add all groups. Call this once: each call would add them again."""
    use.register(app)
    for command in (invite.invite, invite.join, invite.show):
        mesh_app.command()(command)
    register_owners(mesh_app)
    app.add_typer(mesh_app, name="mesh", rich_help_panel=MESH)
    app.add_typer(service_app, name="service", rich_help_panel=MACHINE)
    register_sharing(data_app)
    app.add_typer(data_app, name="data", rich_help_panel=DATA)
    sim_app.command("search")(search)
    app.add_typer(sim_app, name="sim", rich_help_panel=LOOK)
    app.command("replay", rich_help_panel=LOOK)(replay)
    app.add_typer(scheduler_app, name="scheduler", rich_help_panel=SCHEDULE)
    app.add_typer(schedule_app, name="schedule", rich_help_panel=SCHEDULE)
    cloud.register(app)
    personal.register(app)
    look.register_status(app)
    web.register(app)
    look.register_doctor(app)
