"""`semisight serve` without its command line: checks who may reach it, opens the socket, and serves until stopped.

One process answers (`answer`), or several on one socket (workers.py).
"""

import contextlib
import ipaddress
import secrets
import socket
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from semisight.errors import UserError
from semisight.runs.run import load_run
from semisight.server.access import Access, read_people
from semisight.server.limits import Limits
from semisight.server.service import Options, Service, table_for

_SHORTEST_TOKEN = 16
_BACKLOG = 2048  # connections that wait to be taken up
_OWN_FILES = 200  # open files besides connections
_SWITCH = 0.001  # seconds that one thread may keep the others waiting


def serve(
    path: Path,
    options: Options,
    *,
    host: str,
    port: int,
    token: str | None,
    say: Callable[[str], None],
    tokens: Path | None = None,
    workers: int = 1,
) -> None:
    """Serves a run until Ctrl-C or SIGTERM."""
    _check_installed()
    access = access_for(host, token, tokens)
    listening = open_socket(host, port)
    run = load_run(path, options.checkpoint, options.device)
    if run.unfinished:
        say(run.unfinished)
    listening.listen(_BACKLOG)  # whoever reads the address may ask at once

    def greet() -> None:
        for line in greeting(host, listening.getsockname()[1], access, token is None):
            say(line)

    if workers == 1:
        answer(Service(run, options), access, listening, greet)
        return
    from semisight.server.workers import supervise

    table_for(run, options)  # what is wrong with it is said by one, and now
    supervise(path, run, options, access, listening, workers, greet)


def answer(service: Service, access: Access, listening: socket.socket, greet: Callable[[], object]) -> None:
    """Answers at a socket until a signal says that it is enough."""
    import uvicorn

    from semisight.server.connections import Crowd, protocol_for
    from semisight.server.web import create_app

    warnings.filterwarnings("ignore", module="PIL")  # what it thinks of a file is for whoever sent it
    app, crowd = create_app(service, access), Crowd(_with_files(service.limits))
    app.state.metrics.follow("connections", "Open connections.", lambda: len(crowd.open))
    app.state.metrics.follow("connections_given_up", "Half-open ones that made room.", lambda: crowd.evicted)
    sys.setswitchinterval(_SWITCH)  # reading a large table must not hold up answers
    config = uvicorn.Config(
        app,
        http=protocol_for(crowd),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        backlog=_BACKLOG,
        timeout_keep_alive=20,
        timeout_graceful_shutdown=5,
    )
    greet()
    uvicorn.Server(config).run(sockets=[listening])


def _with_files(limits: Limits) -> Limits:
    """As many connections as this process may have open files for."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + _OWN_FILES
    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = max(50, min(limits.connections, soft - _OWN_FILES))
    return replace(limits, connections=most, waiting_per_address=min(limits.waiting_per_address, most))


def _check_installed() -> None:
    for module in ("fastapi", "uvicorn", "httptools", "python_multipart", "prometheus_client"):
        if find_spec(module) is None:
            raise UserError(f"serving needs {module.replace('_', '-')}: pip install 'semisight[serve]'.")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def access_for(host: str, token: str | None, tokens: Path | None = None) -> Access:
    """Whoever can reach the port may ask for everything: beyond this machine only with a token."""
    if token is not None and (len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise UserError(
            f"--token must have at least {_SHORTEST_TOKEN} letters or digits: it is all that keeps others out. Leave "
            "it away and one is made up."
        )
    if tokens is not None:
        try:
            read_people(tokens)
        except OSError as error:
            raise UserError(
                f"could not read {tokens}: {error.strerror or error}. Make it with: "
                f"python -m semisight.server.access {tokens} add NAME"
            ) from error
    needs_one = token is None and tokens is None and not is_loopback(host)
    return Access(secrets.token_urlsafe(24) if needs_one else token, tokens)


def open_socket(host: str, port: int) -> socket.socket:
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(kind, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise UserError(
            f"cannot serve at {host} port {port}: {error.strerror or error}. Choose another --port (0 takes a free one)"
            " or --host."
        ) from error
    return listening


def greeting(host: str, port: int, access: Access, made_up: bool) -> list[str]:
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{port}/"
    if access.is_open:
        return [f"Serving at {address} (Ctrl-C stops). Only this machine can reach it."]
    # After # the token is not sent with the request, so no log keeps it; the page takes it from there.
    shows = made_up and access.token is not None
    lines = [f"Serving at {address}#token={access.token}" if shows else f"Serving at {address}"]
    return [*lines, "Everybody with a token can use it. Without TLS others on the network can read along."]
