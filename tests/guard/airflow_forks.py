"""Runs `airflow`; its command `standalone` forks the components, which need not import Airflow again.

With its components imported four more times, a start took 38 s of CPU time instead of 19 s. It forks another
component where a file of AIRFLOW_HOME asks for one, see `tests/integration/forked_airflow.py`.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import setproctitle

#: What the components import at their start, beyond what `airflow standalone` has imported.
_PRELOADED = (
    "airflow.api_fastapi.core_api.routes.public",
    "airflow.api_fastapi.core_api.routes.ui",
    "airflow.api_fastapi.execution_api.app",
    "airflow.cli.commands.api_server_command",
    "airflow.cli.commands.dag_processor_command",
    "airflow.cli.commands.scheduler_command",
    "airflow.cli.commands.triggerer_command",
)


def main() -> None:
    """Runs the command."""
    # The first call finds the arguments beside the environment, which moves when it is changed.
    setproctitle.setproctitle(" ".join(["airflow", *sys.argv[1:]]))
    from airflow.__main__ import main as run

    if sys.argv[1:] == ["standalone"]:
        for module in _PRELOADED:
            importlib.import_module(module)
        _fork_components()
    run()


def _fork_components() -> None:
    # With that of Python, 700, the collector takes 6 % of a small job; each task inherits it.
    gc.set_threshold(10_000)
    from airflow.cli.commands import standalone_command

    class ForkedCommand(standalone_command.SubCommand):
        """A component that is a fork; its output is read by the thread, as that of a process."""

        def start(self) -> None:
            gc.freeze()
            output, end = os.pipe()
            sys.stdout.flush()
            self.pid = os.fork()
            if self.pid == 0:
                _run_component(self.command, self.env, end)
            os.close(end)
            self._output = os.fdopen(output, "rb")
            super().start()

        def run(self) -> None:
            for line in self._output:
                self.parent.output_queue.append((self.name, line))
            os.waitpid(self.pid, 0)

        def stop(self) -> None:
            os.kill(self.pid, signal.SIGTERM)

    def update_output(self: standalone_command.StandaloneCommand) -> None:
        """Also starts the components that were asked for; called ten times a second by the main thread."""
        show_output(self)
        for name, first in self.subcommands.items():
            if (asked := home / f"start-{name}").exists():
                asked.unlink()
                ForkedCommand(self, name=name, command=first.command, env=first.env).start()

    home = Path(os.environ["AIRFLOW_HOME"])
    show_output = standalone_command.StandaloneCommand.update_output
    standalone_command.StandaloneCommand.update_output = update_output
    standalone_command.SubCommand = ForkedCommand


def _run_component(arguments: list[str], environment: dict[str, str], output: int) -> NoReturn:
    status = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        os.environ.update(environment)
        sys.argv = ["airflow", *arguments]
        setproctitle.setproctitle(" ".join(sys.argv))
        # Which `airflow standalone` sets to WARNING for itself.
        logging.getLogger("").setLevel(logging.INFO)
        from airflow import settings
        from airflow.__main__ import main as run

        settings.dispose_orm(do_log=False)
        settings.configure_orm()
        run()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001 - the end of the process
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
