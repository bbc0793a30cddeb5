"""What redsched does and costs on this machine, measured with real processes on a server of its own.

`redsched bench` shows it; `bench/` of the source has the workloads that only developers need. Nothing here decides
anything, and nothing else imports it.
"""
