"""Building on a Dask cluster. Only here is Dask imported."""
