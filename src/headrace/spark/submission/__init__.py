"""``headrace submit``: a job with its code and environment, packed for ``spark-submit``."""
