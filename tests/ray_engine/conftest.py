"""What is here and not a test."""

collect_ignore = ["cluster_job.py"]  # a program, which cannot be imported without Ray
