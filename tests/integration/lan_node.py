"""A node for the namespaces: greets every peer it finds, tells its stdout what happens, ends when its stdin does."""

import argparse
import json
import sys
import threading
import time

from mdl.protocol.machine import Finish, PeerFound, Received, Send, StopRequested
from mdl.protocol.status_messages import StatusWanted
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.discovery.interfaces import host_to_listen_on
from mdl.transport.discovery.mdns import Discovery
from mdl.transport.links.mesh_links import Links
from mdl.transport.runtime import Runtime
from mdl.transport.trust.keys import MeshKeys


class Greeter:
    def handle(self, event, now):
        match event:
            case PeerFound(info=info):
                say(found=info.peer_id, host=info.host)
                return [Send(info.peer_id, StatusWanted())]
            case Received(sender=sender):
                say(heard=sender.peer_id)
            case StopRequested():
                return [Finish()]
        return []

    def deadline(self):
        return None


def say(**what):
    print(json.dumps({**what, "seconds": round(time.monotonic() - STARTED, 3)}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("code")
    parser.add_argument("peer_id")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--join", nargs="*", default=[])
    options = parser.parse_args()
    keys = MeshKeys.from_code(options.code)
    me = PeerInfo(options.peer_id, 1, Role.TRAINER, "", options.port)
    links = Links(me, keys, max_values=1, now=time.monotonic(), join=options.join, listen_host=host_to_listen_on(""))
    runtime = Runtime(Greeter(), links, {})
    discovery = Discovery(
        links.me,
        keys.name,
        keys,
        lambda info: runtime.post(PeerFound(info)),
        required=not options.join,
        sign=links.introducer.announced,
    )
    threading.Thread(target=lambda: (sys.stdin.read(), runtime.stop()), daemon=True).start()
    say(ready=True)
    runtime.run()
    discovery.close()


STARTED = time.monotonic()
if __name__ == "__main__":
    main()
