"""`hybridlm launch`: run a command in a group of processes that share one model."""

import sys
from typing import Annotated

import typer

from hybridlm.cli.files.commands import EXIT_BAD_ROWS
from hybridlm.cli.options import Debug, reported
from hybridlm.multiprocess import environment
from hybridlm.multiprocess.heartbeat import join
from hybridlm.multiprocess.launch import LaunchError
from hybridlm.multiprocess.launch import launch as start

COMMANDS = ("generate", "score", "decide", "classify", "embed")


def launch(
    context: typer.Context,
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND",
            help="One of generate, score, decide, classify and embed with its arguments, after --.",
        ),
    ],
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            "-n",
            help="Processes to start on this machine. Default: this is a process of a launcher such as SLURM, "
            "Open MPI, or any that sets JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.",
        ),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(help="Virtual devices of each process, on CPUs.", show_default="as many as there are")
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds within which all processes end if one dies or stops responding, at most 60.")
    ] = environment.MAX_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Run a command in several processes, over all their devices.

    Example: `hybridlm launch -n 4 -- score ...`.

    Process 0 reads and writes, the others run a worker loop. Without --mesh lanes are split over all devices.
    """
    with reported(debug):
        if command[0] not in COMMANDS:
            raise ValueError(f"launch: expected one of {', '.join(COMMANDS)} after --, got {command[0]!r}")
        environment.check_timeout(timeout)
        if processes is None:
            join(timeout, devices)
            assert context.parent is not None
            status = context.parent.command.main(command, prog_name="hybridlm", standalone_mode=False)
            if status == environment.EXIT_PEER_LOST:
                environment.exit_peer_lost()
            raise typer.Exit(status or 0)
        if processes < 1:
            raise ValueError(f"launch: expected at least one process, got {processes}")
        options = [f"--timeout={timeout:g}", *([] if devices is None else [f"--devices={devices}"])]
        try:
            start([sys.executable, "-m", "hybridlm", "launch", *options, "--", *command], processes, timeout)
        except LaunchError as error:
            # Process 0 has printed the rows with an error.
            if not (error.others_ended and error.status == EXIT_BAD_ROWS):
                typer.echo(f"error: {error}", err=True)
            raise typer.Exit(error.status) from None
