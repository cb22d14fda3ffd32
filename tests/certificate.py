"""Certificates of a cluster, made by OpenSSL."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificates(folder: Path) -> dict[str, Path]:
    """An authority, and a certificate that it has signed; skip the test where there is no OpenSSL."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on this host, to make a certificate with")
    made = {name: folder / f"{name}.pem" for name in ("ca", "ca_key", "certificate", "key")}
    run = lambda *words: subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    run("req", "-x509", *new, "-keyout", made["ca_key"], "-out", made["ca"], "-subj", "/CN=farm", "-days", 2)
    asked = folder / "asked.csr"
    run("req", *new, "-keyout", made["key"], "-out", asked, "-subj", "/CN=node")
    run(
        "x509", "-req", "-in", asked, "-CA", made["ca"], "-CAkey", made["ca_key"], "-CAcreateserial",
        "-out", made["certificate"], "-days", 2,
    )
    return made
