"""Program of each of two processes in test_kept_together.py: `python keep_together.py DIRECTORY CACHE TIMEOUT LATE`.

Each prints which of its steps came from the store; process 1 leaves LATE seconds after process 0.
"""

import json
import sys
import threading
import time

import jax

import hybridlm
from hybridlm.multiprocess.heartbeat import join

directory, cache, timeout, late = sys.argv[1:]
join(float(timeout))
lm = hybridlm.load(
    directory, lanes=2, context=64, chunk=8, dtype="float32", mesh=hybridlm.mesh(data=2), compilation_cache=cache
)
tokens = None if lm.run_worker() else lm.generate([[1, 2, 3], [4, 5, 6, 7]], max_tokens=6, ignore_eos=True)[0].token_ids
stored = {name: certificate.stored for name, certificate in lm.certificates.items()}
sys.stderr.write(f"FOUND {json.dumps([jax.process_index(), stored, tokens])}\n")
if jax.process_index() == 1:
    threading.Thread(target=time.sleep, args=(float(late),)).start()
