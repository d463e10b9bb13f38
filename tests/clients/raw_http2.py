"""HTTP/2 by hand, for what a library would not send: streams that are opened, and reset or left.

Standard library only.
"""
import socket
import struct
import threading

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 1, 3, 4, 6, 7
PONG = b"baton..."  # Of the client's own ping.
END_HEADERS = 4
CANCEL, ENHANCE_YOUR_CALM = 8, 11
LIMIT_S = 60


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def text(value):
    return bytes([len(value)]) + value


# A request of gRPC's in literals that are indexed (RFC 7541, 6.2.1), then by their indices.
FIRST_HEAD = (b"\x83\x86\x44" + text(b"/baton.v1.Inference/Generate") + b"\x41" + text(b"t") +
              b"\x40" + text(b"content-type") + text(b"application/grpc") +
              b"\x40" + text(b"te") + text(b"trailers"))
NEXT_HEAD = b"\x83\x86\xc1\xc0\xbf\xbe"


class RawClient:
    """A connection from an address of this machine's own; reads all that comes meanwhile."""

    def __init__(self, port, address="127.0.0.1"):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S,
                                               source_address=(address, 0))
        self.stream = -1
        self.frames = []  # (kind, stream, payload) of what came.
        self.ended = threading.Event()
        threading.Thread(target=self.read, daemon=True).start()
        self.send(PREFACE + frame(SETTINGS, 0, 0))

    def send(self, data):
        """False: the connection is over."""
        try:
            self.socket.sendall(data)
            return True
        except OSError:
            return False

    def open(self, count, reset):
        """Opens so many streams, and resets each at once if asked to. The settings of the server are
        never acknowledged. False: the connection is over."""
        data = []
        for _ in range(count):
            self.stream += 2
            head = FIRST_HEAD if self.stream == 1 else NEXT_HEAD
            data.append(frame(HEADERS, END_HEADERS, self.stream, head))
            if reset:
                data.append(frame(RST_STREAM, 0, self.stream, struct.pack(">I", CANCEL)))
        return self.send(b"".join(data))

    def ping(self):
        return self.send(frame(PING, 0, 0, PONG))

    def has_pong(self):
        return (PING, 0, PONG) in self.frames

    def read(self):
        data = b""
        try:
            while more := self.socket.recv(1 << 16):
                data += more
                while len(data) >= 9 and len(data) >= 9 + (size := int.from_bytes(data[:3])):
                    stream = int.from_bytes(data[5:9]) & 0x7fffffff
                    self.frames.append((data[3], stream, data[9:9 + size]))
                    data = data[9 + size:]
        except OSError:
            pass
        self.ended.set()

    def goaway(self):
        """(error, text) of the server's last word, once the connection is over; None without one."""
        assert self.ended.wait(LIMIT_S), "the connection goes on"
        said = [payload for kind, _, payload in self.frames if kind == GOAWAY]
        return (int.from_bytes(said[-1][4:8]), said[-1][8:].decode()) if said else None

    def close(self):
        try:
            self.socket.shutdown(socket.SHUT_RDWR)  # Whoever reads it would keep it open.
        except OSError:
            pass
        self.socket.close()
