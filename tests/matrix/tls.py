"""A private certificate authority, and a front that speaks TLS for a server that can't."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Certificate:
    file: Path
    key: Path


class Authority:
    """Makes certificates that nobody else believes in. Needs the wheel `cryptography`."""

    def __init__(self, folder: Path, name: str = "ours") -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.file = self._write(name, self._signed(self._name, self._key, ca=True), self._key).file

    def issue(self, host: str) -> Certificate:
        """For a host name; `localhost` is also good for 127.0.0.1."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        return self._write(host, self._signed(subject, key, host=host), key)

    def _signed(self, subject, key, *, ca: bool = False, host: str = ""):  # type: ignore[no-untyped-def]
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes

        now = datetime.datetime.now(datetime.UTC)
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name)
        made = made.public_key(key.public_key()).serial_number(x509.random_serial_number())
        made = made.not_valid_before(now - datetime.timedelta(hours=1))
        made = made.not_valid_after(now + datetime.timedelta(days=1))
        made = made.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        if host:
            names: list[x509.GeneralName] = [x509.DNSName(host)]
            if host == "localhost":
                names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return made.sign(self._key, hashes.SHA256())

    def _write(self, name: str, certificate, key) -> Certificate:  # type: ignore[no-untyped-def]
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        made = Certificate(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        made.file.write_bytes(certificate.public_bytes(Encoding.PEM))
        made.key.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        )
        return made


class Front:
    """Takes TLS connections on `port` and passes them on to a server without TLS."""

    def __init__(self, behind: int, authority: Authority, certificate: Certificate) -> None:
        self._behind = behind
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
        self._context.load_cert_chain(certificate.file, certificate.key)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._loop = asyncio.new_event_loop()
        self.port = 0

    def __enter__(self) -> Self:
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, name="tls", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, forth = await asyncio.open_connection("127.0.0.1", self._behind)
        await asyncio.gather(_pump(near, forth), _pump(far, back))


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.CancelledError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    target.close()
