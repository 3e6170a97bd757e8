"""`semisight serve` without its command line: checks who may reach it, opens the socket, and serves until stopped."""

import ipaddress
import secrets
import socket
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from semisight.errors import UserError
from semisight.runs.run import load_run
from semisight.server.guard import Access
from semisight.server.service import Options, Service

_SHORTEST_TOKEN = 16
_CONNECTIONS = 1000


def serve(path: Path, options: Options, *, host: str, port: int, token: str | None, say: Callable[[str], None]) -> None:
    """Serves a run until Ctrl-C or SIGTERM."""
    _check_installed()
    import uvicorn

    from semisight.server.web import create_app

    access = access_for(host, token)
    listening = open_socket(host, port)
    warnings.filterwarnings("ignore", module="PIL")  # what it thinks of a file is for whoever sent it
    run = load_run(path, options.checkpoint, options.device)
    if run.unfinished:
        say(run.unfinished)
    service = Service(run, options)
    config = uvicorn.Config(
        create_app(service, access),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=_CONNECTIONS,
        backlog=512,
        timeout_keep_alive=20,
        timeout_graceful_shutdown=5,
    )
    for line in greeting(host, listening.getsockname()[1], access, token is None):
        say(line)
    uvicorn.Server(config).run(sockets=[listening])


def _check_installed() -> None:
    for module in ("fastapi", "uvicorn", "python_multipart"):
        if find_spec(module) is None:
            raise UserError(f"serving needs {module.replace('_', '-')}: pip install 'semisight[serve]'.")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def access_for(host: str, token: str | None) -> Access:
    """Whoever can reach the port may ask for everything: beyond this machine only with a token."""
    if token is not None and (len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise UserError(
            f"--token must have at least {_SHORTEST_TOKEN} letters or digits: it is all that keeps others out. Leave "
            "it away and one is made up."
        )
    return Access(secrets.token_urlsafe(24) if token is None and not is_loopback(host) else token)


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
    if access.token is None:
        return [f"Serving at {address} (Ctrl-C stops). Only this machine can reach it."]
    # After # the token is not sent with the request, so no log keeps it; the page takes it from there.
    lines = [f"Serving at {address}#token={access.token}" if made_up else f"Serving at {address}"]
    return [*lines, "Everybody with the token can use it. Without TLS others on the network can read along."]
