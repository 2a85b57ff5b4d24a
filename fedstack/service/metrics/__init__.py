"""A page of metrics of a server, for Prometheus."""
