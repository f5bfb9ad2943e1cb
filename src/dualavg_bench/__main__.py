"""`python -m dualavg_bench`, and the installed command `dualavg`."""

import sys


def main() -> None:
    """Run the command line, or say what to install if a package of the extra `bench` is missing."""
    try:
        from dualavg_bench import cli

        cli.main()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "dualavg", "dualavg_bench"):
            raise
        sys.exit(f"dualavg: the benchmark needs {missing}, which is missing: pip install 'dualavg[bench]'")


if __name__ == "__main__":
    main()
