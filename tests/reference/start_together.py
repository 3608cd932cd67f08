"""Start processes of run_together.py: `python start_together.py DIRECTORY FAULT COUNT TIMEOUT`."""

import os
import sys
import time
from pathlib import Path

from hybridlm._launch import Failed, launch

directory, fault, count, timeout = sys.argv[1:]
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0"
script = str(Path(__file__).with_name("run_together.py"))
try:
    launch([sys.executable, script, directory, fault], int(count), float(timeout))
except Failed as error:
    print(f"error: {error}; ended at {time.time()}", file=sys.stderr)
    sys.exit(error.status)
