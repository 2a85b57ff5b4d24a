"""The options of `fedstack serve` for what functions that run there call other servers with."""

from types import SimpleNamespace
from typing import TYPE_CHECKING

from fedstack.command_line.environment_options import EnvironmentOption, RepeatableOption

if TYPE_CHECKING:
    from fedstack.service.data.consumer.reference_reader import ReferenceReader
    from fedstack.transport.grpc.credentials import ClientCredentials

CALL_OPTIONS = (
    EnvironmentOption("--call-ca", "FILE", "authority (PEM) of servers that functions call, as for variables"),
    EnvironmentOption("--call-cert", "FILE", "certificate (PEM) to call them with; by default none"),
    EnvironmentOption("--call-key", "FILE", "key of that certificate (PEM)"),
    EnvironmentOption("--call-token-file", "FILE", "file with the token to call them with; by default none"),
    RepeatableOption(
        "--data-service",
        "ADDRESS",
        "dispatcher whose datasets clients' computations may refer to, which are read here; by default none",
    ),
)


def calls_with(options: SimpleNamespace) -> "ClientCredentials | None":
    """Returns what the options say; `None` if they say nothing.

    Raises:
      InvalidValueError: If they do not fit each other, or name files that cannot be read.
    """
    given = (options.call_ca, options.call_cert, options.call_key, options.call_token_file)
    if not any(given):
        return None
    from fedstack.transport.grpc.channels import check_certificates
    from fedstack.transport.grpc.credentials import ClientCredentials

    authority, certificate, key, token_file = given
    credentials = ClientCredentials.from_files(
        root_certificates=authority, certificate=certificate, private_key=key, token_file=token_file
    )
    check_certificates(credentials, "give the right --call-cert, --call-key and --call-ca")
    return credentials


def data_reader(options: SimpleNamespace) -> "ReferenceReader | None":
    """Returns what reads the datasets of the data services that the options name; `None` if they name none.

    Raises:
      InvalidValueError: If an address is none, or what they are to be dialled with cannot be read.
    """
    if not options.data_service:
        return None
    from fedstack.service.data.consumer.reference_reader import ReferenceReader

    return ReferenceReader(calls_with(options), options.data_service)
