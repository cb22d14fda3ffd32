"""Hooks of other tuners: their results go to a plevel service, and its answers come before their tuning.

Each tool has a module that imports it: `plevel.hooks.triton`, `plevel.hooks.helion`, `plevel.hooks.inductor`. The
tool never waits for a report, and goes on tuning while the service is away.
"""
