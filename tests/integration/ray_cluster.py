"""A Ray cluster of several nodes on this machine: prints its address, and ends with its input.

    python ray_cluster.py NODES [TEMPORARY_FOLDER]

A line "drop" on the input ends the newest node at once, as a power cut would.
"""

import os
import sys
from pathlib import Path

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
from ray.cluster_utils import Cluster


def main() -> None:
    nodes, folder = int(sys.argv[1]), sys.argv[2]
    # Ray notes the address in a folder "ray" below this one, and makes none.
    os.environ["RAY_TMPDIR"] = folder
    Path(folder, "ray").mkdir(parents=True, exist_ok=True)
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
