"""A Ray cluster of several nodes on this machine: prints its address, and ends with its input.

    python ray_cluster.py NODES [TEMPORARY_FOLDER]

A line "drop" on the input ends the newest node at once, as a power cut would.
"""

import os
import sys
import time

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# On a busy machine a node's processes take longer to start than the 30 s that Ray grants them.
os.environ["RAY_raylet_start_wait_time_s"] = "150"  # noqa: SIM112 - Ray's own spelling
os.environ["RAY_gcs_server_port_wait_time_s"] = "150"  # noqa: SIM112
from ray._private import services
from ray.cluster_utils import Cluster

NODE_START_S = 150
_get_node = services.get_node


def wait_for_node(*arguments, **named):
    """Ask for a new node until it is registered: the wait of Ray's own has no setting."""
    until = time.monotonic() + NODE_START_S
    while True:
        try:
            return _get_node(*arguments, **named)
        except RuntimeError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def main() -> None:
    services.get_node = wait_for_node
    nodes, folder = int(sys.argv[1]), sys.argv[2]
    small = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=small | {"temp_dir": folder})
    others = [cluster.add_node(**small) for _ in range(nodes - 1)]
    print(cluster.address, flush=True)  # noqa: T201
    for line in sys.stdin:
        if line.strip() == "drop":
            cluster.remove_node(others.pop(), allow_graceful=False)
    cluster.shutdown()


if __name__ == "__main__":
    main()
