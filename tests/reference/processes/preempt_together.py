"""Program of each of two processes in test_preempted_together.py: `python preempt_together.py DIRECTORY`.

Process 0 sends the requests of DIRECTORY/requests.json, each with the text of its solo run, to few pages, scores a text
between the steps, and writes completions and counts to DIRECTORY/found.json.
"""

import json
import random
import sys
import warnings
from pathlib import Path
from typing import Any

from random_traffic import PAGES, SETTINGS, Known, traffic

import hybridlm
from hybridlm.engine import scheduler
from hybridlm.engine.speculation import Speculation
from hybridlm.multiprocess.heartbeat import join
from models import KV_BLOCK

directory = Path(sys.argv[1])
requests, texts, scored = json.loads((directory / "requests.json").read_text())
scheduler.ROOM, Speculation.always = 3, True
join(20.0)
settings: dict[str, Any] = SETTINGS | {"lanes": 8, "cache": 2 * PAGES * KV_BLOCK, "prefix_cache": "2MB"}
lm = hybridlm.load(directory, mesh=hybridlm.mesh(data=2), **settings)
if not lm.run_worker():
    warnings.simplefilter("ignore")
    results = []
    for drafter in (None, Known(texts, (7,))):
        completions, preempted = traffic(lm, requests, random.Random(1), arrivals=1.0, speculate=drafter)
        tokens = {index: (done.finish_reason, done.token_ids) for index, done in completions.items()}
        results.append([preempted, tokens])
    with lm.session() as session:  # it gives way to a score, and goes on
        for prompt, options in requests[:8]:
            session.submit(prompt, **options)
        session.step()
        scores = [score.logprobs[1:].tolist() for score in lm.score(scored)]
        ended = 0
        while session.busy:
            ended += sum(event.completion is not None for event in session.step())
    record = {"traffic": results, "scores": scores, "ended": ended, "stats": lm.stats}
    (directory / "found.json").write_text(json.dumps(record))
