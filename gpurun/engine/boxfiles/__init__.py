"""Files of a box: which match, their digests, and fetching them whole or not at all."""

from gpurun.engine.boxfiles.fetching import documents, fetch, fetch_these, newest
from gpurun.engine.boxfiles.listing import BoxFile, matching

__all__ = ["BoxFile", "documents", "fetch", "fetch_these", "matching", "newest"]
