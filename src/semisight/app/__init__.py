"""What people touch: the command line, the estimator, the report, the server."""
