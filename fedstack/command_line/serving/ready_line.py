"""Says where a server can be dialled, and what it does for whom."""

import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING

from fedstack._version import __version__

if TYPE_CHECKING:
    from fedstack.service.cluster.task import Task


def ready_line(target: str, options: SimpleNamespace, task: "Task | None" = None) -> str:
    """Returns what tells that the server can be dialled: where, by whom, and what it runs for them."""
    from fedstack.service.server.listening import TcpListener

    traits = ["TLS" if options.tls_cert else "insecure"]
    if options.tls_client_ca:
        traits.append("client certificates")
    if options.token_file:
        traits.append("token")
    if options.unix_socket:
        traits.append("this user only")
    elif is_private(options):
        traits.append("loopback only")
    elif TcpListener(options.host, options.port).is_everywhere:
        traits.append("every network of this machine")
    if task is not None:
        traits.append(str(task))
    code = "allowed" if options.allow_python_code else "refused"
    modules = f"; modules {', '.join(options.allow_module)}" if options.allow_module else ""
    runtimes = f"; runtimes {', '.join(options.allow_runtime)}" if options.allow_runtime else ""
    data = "; data dispatcher" if options.data_dispatcher else ""
    if data and options.work_dir is not None:
        data += f" with its journal in {options.work_dir}"
    if options.data_worker is not None:
        data += f"; data worker of {options.data_worker}"
    what = f"python code {code}{modules}{runtimes}{data}"
    return f"fedstack {__version__} serving on {target} ({', '.join(traits)}); {what}"


def dialled_address(target: str, options: SimpleNamespace) -> str:
    """Returns what clients dial: for a server that listens at all addresses of this machine, by its name."""
    from fedstack.service.server.listening import TcpListener

    if options.unix_socket is not None or not TcpListener(options.host, options.port).is_everywhere:
        return target
    return f"{socket.gethostname() or 'localhost'}:{target.rpartition(':')[2]}"


def is_private(options: SimpleNamespace) -> bool:
    """Returns whether only processes of this machine can dial a server."""
    from fedstack.service.server.listening import TcpListener

    return options.unix_socket is not None or TcpListener(options.host, options.port).is_private
