"""The cost model of all workloads of an operator, trained between runs."""
