"""The command line: data on stdout, everything else on stderr."""

_LASTING = 300_000
"""Objects between two searches for cycles: an answer makes 130,000 lasting ones, and waits for no search among them."""


def main() -> None:
    """Entry point of the ``neusight`` command.

    Lasting objects are not searched for cycles when the program ends either, and pydantic looks for no plugins:
    together a third of the time of a cold answer.
    """
    import atexit
    import gc
    import os
    import sys
    import warnings

    # For people who type: one line without a place in the code.
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    gc.set_threshold(_LASTING, 50, 100)
    atexit.register(gc.freeze)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from neusight.cli.app import command_line

    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a bar or an arrow gets a question mark, not a traceback.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    command_line(sys.argv[1] if len(sys.argv) > 1 else "")(prog_name="neusight")
