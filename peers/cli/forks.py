"""The process that `mdl up` forks its peers from: a script (`begun_nursery` in `peers/launch/nursery.py`)."""

from __future__ import annotations

import gc
import sys

from mdl.peers.launch.nursery import become, wait_for_a_command


def _import_all() -> None:
    """Import the modules that `mdl peer` and `mdl cloud` need, and build the commands once for all of them."""
    import filelock  # noqa: F401
    import numpy.random  # noqa: F401
    import torch  # noqa: F401

    from mdl.peers import sharing  # noqa: F401
    from mdl.peers.cli.main import whole
    from mdl.peers.colla import edge  # noqa: F401
    from mdl.peers.edge import device, node, resume  # noqa: F401
    from mdl.peers.view import report  # noqa: F401

    whole()


if __name__ == "__main__":
    gc.disable()  # a tenth of the time
    _import_all()
    gc.enable()
    asked, given = wait_for_a_command(int(sys.argv[1]))
    become(asked, given)
    sys.argv = ["mdl", *asked["words"]]
    from mdl.__main__ import main

    main()
