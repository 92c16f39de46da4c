"""The command line: one console script, one verb a module."""

import signal

from perfsuite.system.signals import ends_on_signals, exit_by, handled_by


def main() -> None:
    """Run the command line; a signal that comes while it loads ends it in one line, too."""
    with ends_on_signals(), handled_by(lambda number, _: exit_by(number), [signal.SIGINT]):
        from perfsuite.cli.app import main as run
    run()
