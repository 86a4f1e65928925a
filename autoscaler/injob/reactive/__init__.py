"""The reactive scheduler inside a PySpark job."""

from autoscaler.injob.reactive.conf import reactive_conf
from autoscaler.injob.reactive.job import BuildError, JobFailedError, ReactiveJob
from autoscaler.injob.reactive.options import Options, OptionsError

__all__ = ["BuildError", "JobFailedError", "Options", "OptionsError", "ReactiveJob", "reactive_conf"]
