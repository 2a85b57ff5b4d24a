"""A federated average on a cluster of two tasks, which one TOML file describes.

In three terminals:

  fedstack serve --cluster examples/cluster.toml --task 0
  fedstack serve --cluster examples/cluster.toml --task 1
  python examples/two_tasks.py examples/cluster.toml

Which comes first does not matter. The tasks need no option about functions: an average is nobody's own code.
"""

import argparse

import federated_language as fl
import numpy as np

import fedstack
from fedstack.service import ClusterSpec, wait_for_addresses

parser = argparse.ArgumentParser(description="Averages on a cluster.")
parser.add_argument("cluster", metavar="FILE", help="as examples/cluster.toml")
parser.add_argument("--addresses", metavar="FILE", help="what the tasks add their addresses to, where they have port 0")
parser.add_argument("--clients", type=int, default=1000)


@fl.federated_computation(fl.FederatedType(np.float64, fl.CLIENTS))
def average(readings):
    return fl.federated_mean(readings)


def main():
    options = parser.parse_args()
    cluster = ClusterSpec.from_file(options.cluster)
    if options.addresses:
        cluster = wait_for_addresses(cluster, options.addresses)
    readings = np.random.default_rng(0).normal(20.0, 5.0, options.clients)
    with fedstack.create_sync_remote_execution_context(cluster, connect_seconds=60):
        mean = average(readings.tolist())
    print(f"{mean:.4f} on average of {options.clients} clients, on {cluster.num_tasks('worker')} tasks")


if __name__ == "__main__":
    main()
