"""Workers run task bodies. A supervisor keeps leases and time; its children read, run and report. See supervisor.py."""
