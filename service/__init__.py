"""The service: runs, jobs, leases, records, the tuner and the HTTP interface. No TVM."""
