"""A TCP proxy that damages what passes it, and counts what it did.

All proxies run on one asyncio loop in a thread of their own. Methods may be called from any thread.
Bytes of a direction are counted per connection, from the moment that the faults were set.
"""
import asyncio
import collections
import dataclasses
import struct
import threading

CHUNK = 1 << 16
UP, DOWN = "up", "down"  # From the connecting side to the target, and back.


@dataclasses.dataclass(frozen=True)
class Faults:
    """What happens to one direction. The defaults do nothing."""
    delay_s: float = 0        # Every byte comes that much later.
    rate: float = 0           # Bytes per second.
    cut_at: int = -1          # Both connections are reset before this byte.
    swallow_at: int = -1      # From this byte on bytes vanish; the connections stay open.
    flip_at: tuple = ()       # One bit of each of these bytes is flipped.
    duplicate: tuple = ()     # (first byte, length): this span is sent twice.
    block: bool = False       # Bytes are held until the faults are set anew.
    # In final frames of K/V connections that begin from now on (common/transport/wire.h) the first
    # token becomes this one, and the checksum that of what is sent.
    first_token: int = -1


def crc32c(data):
    crc = ~0 & 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return ~crc & 0xffffffff


HEADER_BYTES, TRAILER_BYTES = 80, 8
FINAL, TYPE_AT, PAYLOAD_BYTES_AT, TOKEN_AT = 6, 6, 52, 32


def forge_finals(data, token):
    """(the whole frames of `data`, with another first token in final ones; how many those were; the
    rest of `data`)."""
    at = forged = 0
    while len(data) >= at + HEADER_BYTES:
        payload_bytes, = struct.unpack_from("<I", data, at + PAYLOAD_BYTES_AT)
        end = at + HEADER_BYTES + (payload_bytes + TRAILER_BYTES if payload_bytes else 0)
        if len(data) < end:
            break
        if data[at + TYPE_AT] == FINAL:
            payload = at + HEADER_BYTES
            struct.pack_into("<i", data, payload + TOKEN_AT, token)
            struct.pack_into("<I", data, payload + payload_bytes,
                             crc32c(data[payload:payload + payload_bytes]))
            forged += 1
        at = end
    return data[:at], forged, data[at:]


class ProxyLoop:
    """The thread of all proxies. Use as a context manager."""

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        self.listeners = []
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        async def end():
            for listener in self.listeners:
                listener.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.run(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def proxy(self, target=None):
        """A proxy on a free port; its target ("host:port") may be set later."""
        proxy = FaultProxy(self, target)
        self.run(proxy.listen())
        return proxy


class Direction:
    """One direction of one connection: how many bytes came since the faults were set."""

    def __init__(self):
        self.offset = 0
        self.setting = 0
        self.rest = bytearray()  # Of a frame whose end has not come.


class FaultProxy:
    def __init__(self, loop, target):
        self.loop, self.target = loop, target
        self.faults = {UP: Faults(), DOWN: Faults()}
        self.half_open = False  # New connections are accepted and read, and lead nowhere.
        self.counts = collections.Counter()
        self.connections = set()
        self.setting = 0
        self.changed = None  # Wakes what is blocked.

    async def listen(self):
        self.changed = asyncio.Event()
        listener = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.loop.listeners.append(listener)
        host, port = listener.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    def set(self, up=Faults(), down=Faults(), half_open=False):
        """Replaces all faults; counts start again. Without arguments the link is healed."""
        async def apply():
            self.faults = {UP: up, DOWN: down}
            self.half_open = half_open
            self.setting += 1
            self.counts.clear()
            self.changed.set()
            self.changed = asyncio.Event()
        self.loop.run(apply())

    def cut(self):
        """Resets every connection now; how many there were."""
        async def apply():
            connections = list(self.connections)
            for pair in connections:
                self.reset(pair)
            self.counts["cut"] += len(connections)
            return len(connections)
        return self.loop.run(apply())

    @staticmethod
    def reset(pair):
        for writer in pair:
            writer.transport.abort()

    async def serve(self, reader, writer):
        self.counts["connections"] += 1
        if self.half_open:
            self.counts["half_open"] += 1
            while data := await reader.read(CHUNK):
                self.counts["swallowed"] += len(data)
            return writer.close()
        try:
            host, port = self.target.rsplit(":", 1)
            there, back = await asyncio.open_connection(host, int(port))
        except (OSError, AttributeError):
            self.counts["unreachable"] += 1
            return writer.transport.abort()
        pair = (writer, back)
        self.connections.add(pair)
        try:
            await asyncio.gather(self.carry(reader, back, UP, pair),
                                 self.carry(there, writer, DOWN, pair))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self.connections.discard(pair)
            self.reset(pair)

    async def carry(self, reader, writer, name, pair):
        """Bytes of one direction until it ends; the end is handed on."""
        queue = asyncio.Queue(64)  # (due, bytes); None = the end.
        sender = asyncio.ensure_future(self.send(queue, writer, name))
        sender.add_done_callback(
            lambda task: None if task.cancelled() or not task.exception() else self.reset(pair))
        direction = Direction()
        clock = asyncio.get_running_loop().time
        try:
            while data := await reader.read(CHUNK):
                while self.faults[name].block:
                    self.counts["held"] += len(data)
                    await self.changed.wait()
                data, is_cut = self.damage(data, direction, name)
                if data:
                    self.counts[f"bytes_{name}"] += len(data)
                    await queue.put((clock() + self.faults[name].delay_s, data))
                if is_cut:
                    self.counts["cut"] += 1
                    return self.reset(pair)
            await queue.put(None)
            await sender
        finally:
            sender.cancel()

    async def send(self, queue, writer, name):
        clock = asyncio.get_running_loop().time
        while item := await queue.get():
            due, data = item
            if due > clock():
                self.counts["delayed"] += len(data)
                await asyncio.sleep(due - clock())
            step = max(1, int(self.faults[name].rate / 20)) if self.faults[name].rate else len(data)
            for begin in range(0, len(data), step):
                writer.write(data[begin:begin + step])
                await writer.drain()
                if rate := self.faults[name].rate:
                    self.counts["limited"] += len(data[begin:begin + step])
                    await asyncio.sleep(step / rate)
        writer.write_eof()

    def damage(self, data, direction, name):
        """The bytes to send on in place of `data`, and whether the connection is cut after them."""
        faults = self.faults[name]
        if direction.setting != self.setting:
            direction.setting, direction.offset = self.setting, 0
        begin, end = direction.offset, direction.offset + len(data)
        direction.offset = end
        data = direction.rest + data
        direction.rest = bytearray()
        if faults.first_token >= 0:
            data, forged, direction.rest = forge_finals(data, faults.first_token)
            self.counts["forged"] += forged
        for at in faults.flip_at:
            if begin <= at < end:
                data[at - begin] ^= 1 << (at % 8)
                self.counts["flipped"] += 1
        is_cut = 0 <= faults.cut_at < end
        if is_cut:
            del data[max(0, faults.cut_at - begin):]
        if 0 <= faults.swallow_at < end:
            kept = max(0, faults.swallow_at - begin)
            self.counts["swallowed"] += len(data) - kept
            del data[kept:]
        if faults.duplicate:
            first, length = faults.duplicate
            # A span that reaches beyond this chunk is repeated as far as it is here.
            span = data[max(0, first - begin):max(0, first + length - begin)]
            if begin <= first < end:
                data[first - begin + len(span):first - begin + len(span)] = span
                self.counts["duplicated"] += len(span)
        return bytes(data), is_cut
