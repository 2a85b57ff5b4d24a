"""Federated averaging as in federated_averaging.py, on workers in other processes: nothing of it is changed.

In three terminals:

  PYTHONPATH=examples fedstack serve --port 8000 --allow-module federated_averaging
  PYTHONPATH=examples fedstack serve --port 8001 --allow-module federated_averaging
  python examples/remote_workers.py localhost:8000 localhost:8001

The clients' functions go by reference: each worker imports federated_averaging itself, here because it is on its path,
elsewhere because it is installed.
"""

import argparse
from pathlib import Path

from federated_averaging import load_clients, train

import fedstack

parser = argparse.ArgumentParser(description="Trains on workers.")
parser.add_argument("workers", nargs="+", metavar="ADDRESS", help="as in localhost:8000")
parser.add_argument("--clients", type=int, default=20)
parser.add_argument("--rounds", type=int, default=20)
parser.add_argument("--certs", type=Path, metavar="FOLDER", help="what `fedstack certs` made, for workers with TLS")


def credentials_in(folder):
    return fedstack.ClientCredentials.from_files(
        root_certificates=folder / "ca.pem", certificate=folder / "client.pem", private_key=folder / "client.key"
    )


def main():
    options = parser.parse_args()
    credentials = None if options.certs is None else credentials_in(options.certs)
    clients = load_clients(options.clients, seed=0)
    with fedstack.create_sync_remote_execution_context(options.workers, credentials=credentials):
        for number, metrics in enumerate(train(*clients, options.rounds, seed=0), start=1):
            print(f"round {number}: accuracy {metrics['accuracy']:.4f}")


if __name__ == "__main__":
    main()
