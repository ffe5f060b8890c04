"""The command line: data on stdout, everything else on stderr."""


def main() -> None:
    """Entry point of the ``neusight`` command."""
    import sys

    from neusight.cli.app import app

    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a bar or an arrow gets a question mark, not a traceback.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    app(prog_name="neusight")
