"""Faults amid streams: for tests of what clients see of them."""
import os
import signal
import threading
import time

LONG = dict(prompt="And it came to pass", max_tokens=1500, temperature=0, ignore_eos=True)
MAX_TRIES = 20  # Until a fault met something.


def texts(streams):
    """What each said, in order: an event holds all that came since the one before."""
    return sorted("".join(c["choices"][0]["text"] for c in chunks) for chunks in streams)


class AmidStreams:
    """Beside unittest.TestCase."""

    def start_streams(self, cluster, count, begun=None, **body):
        """Opens streams in threads; returns once all (or `begun`) have a token, with a call that
        joins them."""
        first = threading.Semaphore(0)
        results = [None] * count

        def follow(index):
            chunks = []
            try:
                for chunk in cluster.open_stream("/v1/completions", **{**LONG, **body}):
                    chunks.append(chunk)
                    if len(chunks) == 1:
                        first.release()
            except Exception as error:  # noqa: BLE001: judged below.
                chunks.append(error)
            results[index] = chunks

        threads = [threading.Thread(target=follow, args=(i,), daemon=True) for i in range(count)]
        for thread in threads:
            thread.start()
        for _ in range(begun or count):
            self.assertTrue(first.acquire(timeout=60), "no token came")

        def join(seconds):
            deadline = time.monotonic() + seconds
            for thread in threads:
                thread.join(max(0, deadline - time.monotonic()))
            self.assertFalse([t for t in threads if t.is_alive()], "a request hangs")
            return results
        return join

    def await_last_tokens(self, cluster):
        """Until the router has taken what stopped workers had sent: a busy machine may leave it
        behind them, with the end of a stream on its way."""
        def num_tokens():
            return cluster.metric("baton_request_inter_token_latency_seconds_count")
        before = -1
        while before != (before := num_tokens()):
            time.sleep(0.3)

    def stop_amid_streams(self, cluster, count, **body):
        """Opens streams and stops every decode worker before one has ended: (join, the workers).
        What a test does to a stopped worker cannot come too late, however busy the machine is."""
        workers = cluster.workers("decode")

        def signal_all(number):
            for worker in workers:
                os.kill(worker["pid"], number)
        for _ in range(MAX_TRIES):
            ended = cluster.ended_requests()
            join = self.start_streams(cluster, count, begun=1, **body)
            signal_all(signal.SIGSTOP)
            self.await_last_tokens(cluster)
            if cluster.ended_requests() == ended:
                return join, workers
            signal_all(signal.SIGCONT)
            join(60)
        self.fail(f"in {MAX_TRIES} tries a stream had ended as soon as one began")
