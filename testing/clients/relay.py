"""A TCP proxy before the agent that keeps what went over it: how many requests, and which were the last.

HTTP/1.1 without pipelining, as these clients speak it: what a client sends after it was answered begins the next exchange.
"""

import socket
import threading

EXCHANGES_MAX = 400
# Of each direction of an exchange; a list of a whole catalog is not needed to see what went wrong.
KEPT_BYTES_MAX = 4000


class Exchange:
    def __init__(self):
        self.sent = b""
        self.answered = b""

    @property
    def line(self):
        return self.sent.split(b"\r\n", 1)[0].decode(errors="replace")

    @property
    def status(self):
        parts = self.answered.split(b" ", 2)
        return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0

    def text(self):
        sent_head, _, sent_body = self.sent.partition(b"\r\n\r\n")
        head, _, body = self.answered.partition(b"\r\n\r\n")
        sent = f"{sent_head.splitlines()[0].decode(errors='replace')} {sent_body.decode(errors='replace')}".rstrip()
        index = [line for line in head.splitlines() if line.lower().startswith(b"x-consul-index")]
        answered = b" ".join([*head.splitlines()[:1], *index, body]).decode(errors="replace").strip()
        return f"sent     {sent[:600]}\n    answered {(answered or 'nothing yet')[:600]}"


class Relay:
    def __init__(self, port):
        self.target = port
        self.count = 0
        self.exchanges = []
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            open_exchange = []
            for source, sink, is_client in ((client, server, True), (server, client, False)):
                threading.Thread(target=self.pump, args=(source, sink, is_client, open_exchange), daemon=True).start()

    def pump(self, source, sink, is_client, current):
        try:
            while data := source.recv(65536):
                self.keep(data, is_client, current)
                sink.sendall(data)
        except OSError:
            pass
        for each in (source, sink):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def keep(self, data, is_client, current):
        with self.lock:
            if is_client and (not current or current[0].answered):
                current[:] = [Exchange()]
                self.count += 1
                self.exchanges.append(current[0])
                del self.exchanges[:-EXCHANGES_MAX]
            if current:
                exchange = current[0]
                if is_client:
                    exchange.sent = (exchange.sent + data)[:KEPT_BYTES_MAX]
                else:
                    exchange.answered = (exchange.answered + data)[:KEPT_BYTES_MAX]

    def take(self):
        """The exchanges since it was last asked."""
        with self.lock:
            taken, self.exchanges = self.exchanges, []
            return taken

    def close(self):
        self.listener.close()
