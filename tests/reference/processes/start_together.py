"""Start processes of run_together.py: `python start_together.py DIRECTORY FAULT COUNT TIMEOUT FAULTY HOW`.

HOW is "launch", or "alone" for a launcher that leaves processes alone, as srun does.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from hybridlm.multiprocess.environment import ADDRESS, COUNT, NUMBER
from hybridlm.multiprocess.launch import LaunchError, free_port, launch

directory, fault, count, timeout, faulty, how = sys.argv[1:]
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0"
script = str(Path(__file__).with_name("run_together.py"))
command = [sys.executable, script, directory, fault, faulty]


def alone() -> int:
    """Wait for each by itself; the exit status of the last of those that failed."""
    joint = {**os.environ, ADDRESS: f"127.0.0.1:{free_port()}", COUNT: count}
    running = [subprocess.Popen(command, env={**joint, NUMBER: str(i)}) for i in range(int(count))]
    results = [process.wait() for process in running]
    print(f"statuses {results}; ended at {time.time()}", file=sys.stderr)
    return max(results)


if how == "alone":
    sys.exit(alone())
try:
    launch(command, int(count), float(timeout))
except LaunchError as error:
    print(f"error: {error}; ended at {time.time()}", file=sys.stderr)
    sys.exit(error.status)
