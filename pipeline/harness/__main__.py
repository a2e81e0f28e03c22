"""The command of lm-evaluation-harness, with our model class: ``python -m pipeline.harness run ...``."""

import sys

from pipeline.errors import PipelineError, has_package, install_command


def main() -> None:
    """Do what ``lm_eval`` does; releases up to 0.4.13 have no way to be told of a model class of others."""
    if not has_package("lm_eval"):
        sys.exit(f"lm-evaluation-harness is not installed: {install_command('lm-eval')}")
    from lm_eval.__main__ import cli_evaluate

    import pipeline.harness.lm_eval  # noqa: F401 - it registers itself

    try:
        cli_evaluate()
    except PipelineError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
