"""The job graph: frozen data, and the fluent API that builds it. Nothing here runs."""
