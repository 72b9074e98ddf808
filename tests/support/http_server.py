"""An HTTP server with ranges, and with the faults of real ones: ``python -m tests.support.http_server FOLDER '{...}'``.

It is a process of its own, prints its port, and ends when its standard input ends. Its options, as JSON: ``seed``,
``fail`` and ``stall`` (the share of requests that fail, or whose answers stop in the middle without an end),
``latency`` (seconds before each answer), ``together`` (after a request for ``/gather``, answers wait for so many
requests at once), ``ranges`` (false: it ignores them), ``tags`` (false: it sends no header that
changes with a file), ``keys`` (a file with the valid access keys of S3; others have expired), ``digests`` (it
sends the digest of each answer), ``damaged`` and ``shifted`` (so many answers have a wrong bit at the end, or begin
16 bytes later and say so).

``/faults`` returns the number of faults of each kind, ``/requests`` the number of requests and of bytes sent.
"""

import base64
import contextlib
import hashlib
import http.server
import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request

KINDS = ("503", "429", "reset", "short", "silent reset")


class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise a body waits for the client to acknowledge the headers

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        if self.path == "/gather":
            self.server.barrier = threading.Barrier(self.server.options["together"])
            self.small(b"null")
        elif self.path in ("/faults", "/requests"):
            self.small(json.dumps(getattr(self.server, self.path[1:])).encode())
        else:
            self.answer(body=True)

    def small(self, text):
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def answer(self, body):
        state = self.server
        fault = state.draw()
        if state.options["latency"]:
            time.sleep(state.options["latency"])
        if self.path.startswith("/secret"):
            self.send_error(403)
            return
        if fault in ("503", "429"):
            self.send_error(int(fault))
            return
        if fault == "silent reset":
            self.reset()
            return
        if self.key_has_expired():
            self.send_error_of_s3(body)
            return
        path = self.translate_path(self.path)
        if os.path.isdir(path):
            super().do_GET() if body else super().do_HEAD()
            return
        wanted, start, last = self.headers.get("Range"), 0, ""
        if wanted and state.options["ranges"]:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start = int(first)
            if body and state.is_one_of("shifted"):
                start, last = start + 16, str(int(last) + 16)
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                size, when = status.st_size, status.st_mtime_ns
                stop = min(size, int(last) + 1 if last else size)
                part = os.pread(file.fileno(), stop - start, start)
        except FileNotFoundError:
            self.send_error(404)
            return
        if wanted and state.options["ranges"]:
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(part)))
        if state.options["tags"]:
            self.send_header("ETag", f'"{size:x}-{when:x}"')
        if state.options["digests"]:
            digest = base64.b64encode(hashlib.sha256(part).digest()).decode()
            self.send_header("Content-Digest", f"sha-256=:{digest}:")
        if not body:
            self.end_headers()
            return
        if state.is_one_of("damaged"):
            part = part[:-1] + bytes([part[-1] ^ 1])
        if state.barrier is not None:
            state.barrier.wait(timeout=600)
        self.end_headers()
        state.count(len(part))
        if fault in ("reset", "short", "stall"):
            self.wfile.write(part[: len(part) // 2])
            self.wfile.flush()
            if fault == "stall":
                self.connection.recv(1)  # until the client closes the connection or sends a request
            if fault == "reset":
                self.reset()
            self.close_connection = True
            return
        self.wfile.write(part)

    def key_has_expired(self):
        keys = self.server.options["keys"]
        if keys is None:
            return False
        key = self.headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]
        return key not in open(keys).read().split()

    def send_error_of_s3(self, body):
        """Answer as S3 does: the body says what has expired, and a HEAD request gets no body."""
        text = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
        self.send_response(400)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if body:
            self.wfile.write(text)

    def reset(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.shutdown(socket.SHUT_RD)
        self.close_connection = True

    def finish(self):
        with contextlib.suppress(OSError):  # the client has gone already
            super().finish()


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder, options, port=0):
        self.options = {
            "seed": 0, "fail": 0.0, "stall": 0.0, "latency": 0.0, "together": 0, "ranges": True, "tags": True,
            "keys": None, "digests": False, "damaged": 0, "shifted": 0,
            **options,
        }  # fmt: skip
        self.random, self.lock = random.Random(self.options["seed"]), threading.Lock()
        self.faults = dict.fromkeys((*KINDS, "stall"), 0)
        self.requests = {"requests": 0, "bytes": 0}
        self.barrier = None

        def handler(*args):
            return Handler(*args, directory=folder)

        super().__init__(("127.0.0.1", port), handler)

    def draw(self):
        with self.lock:
            self.requests["requests"] += 1
            fate = self.random.random()
            kind = None
            if fate < self.options["fail"]:
                kind = self.random.choice(KINDS)
            elif fate < self.options["fail"] + self.options["stall"]:
                kind = "stall"
            if kind is not None:
                self.faults[kind] += 1
            return kind

    def is_one_of(self, kind):
        """Return whether this answer is among the first ones, which are `kind`."""
        with self.lock:
            self.options[kind] -= 1
            return self.options[kind] >= 0

    def count(self, n):
        with self.lock:
            self.requests["bytes"] += n

    def handle_error(self, request, address):
        pass  # broken connections are expected


class Running:
    """The server in a process of its own."""

    def __init__(self, folder, port=0, **options):
        command = [sys.executable, "-m", "tests.support.http_server", str(folder), json.dumps(options), str(port)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def tells(self, what):
        with urllib.request.urlopen(f"{self.url}/{what}", timeout=600) as answer:
            return json.load(answer)

    def kill(self):
        self.process.kill()
        self.close()

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def main():
    folder, options, port = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    server = Server(folder, options, port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
