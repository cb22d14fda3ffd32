"""The certificate of a service, which is read again when its files change: certificates are renewed every few weeks."""

from __future__ import annotations

import contextlib
import logging
import ssl
from pathlib import Path

from service.errors import StartError

log = logging.getLogger(__name__)


class Certificate:
    """A certificate and its key.

    Args:
        chain: a PEM file, the certificate and those that lead to its authority.
        key: a PEM file, without a passphrase.

    Raises:
        StartError: they cannot be used.
    """

    def __init__(self, chain: Path, key: Path) -> None:
        self._chain, self._key = chain, key
        self._marks = self._look()
        self._context = self._read()

    def current(self) -> ssl.SSLContext:
        """The context for new connections: of the files as they are now, or as they last could be used."""
        marks = self._look()
        if marks != self._marks:
            self._marks = marks
            try:
                self._context = self._read()
                log.info("serving the certificate of %s as it is now", self._chain)
            except StartError as error:  # such as between the writing of one file and of the other
                log.warning("%s: serving the certificate from before", error)
        return self._context

    def _look(self) -> list[tuple[int, ...]]:
        """The marks of the files, which differ after a change of them."""
        marks: list[tuple[int, ...]] = []
        for path in (self._chain, self._key):
            with contextlib.suppress(OSError):
                found = path.stat()
                # The time of a change covers owners and permissions, which may be set once a file is written.
                marks.append((found.st_ino, found.st_size, found.st_ctime_ns))
        return marks

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self._chain, self._key, password="")  # else OpenSSL asks the terminal for one
        except OSError as error:  # ssl.SSLError is one
            raise StartError(
                f"tls_cert {self._chain}, tls_key {self._key}: not a certificate and its key "
                f"({error.strerror or error}): name PEM files without a passphrase that this user may read"
            ) from error
        return context
