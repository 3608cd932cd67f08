"""What is said to a model that lies over several processes."""

import atexit

from hybridlm._engine import Engine
from hybridlm._following import follow


class Together:
    """The part of `LM` that is about other processes."""

    _engine: Engine

    def follow(self) -> bool:
        """Where the mesh has devices of several processes: take part in what process 0 runs, until it has ended.

        Call it in every process once the model is loaded. In process 0, and without such a mesh, it returns False at
        once; in the others True, when nothing is left to do::

            lm = hybridlm.load("DIRECTORY", mesh=hybridlm.mesh(data=len(jax.devices())))
            if not lm.follow():
                print(lm.generate(prompts))

        A process that cannot go on, because another has ended, does not answer or was told something else, says why
        and ends (status 70); in process 0 an error is raised, unless it waits for a process that does not answer.
        """
        crew = self._engine.calls.crew
        if crew is None:
            return False
        if crew.leads:
            atexit.register(crew.end)
            return False
        follow(self._engine, crew)
        return True
