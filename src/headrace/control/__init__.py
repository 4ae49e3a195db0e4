"""Control and observation of a running job: an HTTP API, metrics, and samples that are kept."""
