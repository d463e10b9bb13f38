"""A client of the router's HTTP API. Standard library only. Every wait has a limit."""
import http.client
import json
import time
import urllib.parse
import urllib.request

LIMIT_S = 120  # Of one request: a test machine may be busy, a hang must not pass.


def metric_samples(metrics_url, name):
    """[(text of the labels, value)] of a metric on a page of /metrics."""
    with urllib.request.urlopen(metrics_url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    samples = []
    for line in lines:
        key, _, value = line.rpartition(" ")
        if key.partition("{")[0] == name:
            samples.append((key.partition("{")[2], float(value)))
    return samples


def metric_sum(metrics_url, name, **labels):
    """The sum over the samples with these labels."""
    return sum(value for text, value in metric_samples(metrics_url, name)
               if all(f'{k}="{v}"' in text for k, v in labels.items()))


class HttpError(Exception):
    def __init__(self, code, body, headers):
        super().__init__(f"HTTP {code}: {body}")
        self.code, self.body, self.headers = code, body, headers


class ApiClient:
    """Has `url`; `model` is the served name."""

    url = None
    model = None

    def connect(self, timeout=LIMIT_S):
        return http.client.HTTPConnection(urllib.parse.urlparse(self.url).netloc, timeout=timeout)

    def request(self, method, path, body=None, timeout=LIMIT_S):
        """The raw answer: (status, headers, bytes)."""
        connection = self.connect(timeout)
        try:
            data = json.dumps(body) if isinstance(body, (dict, list)) else body
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def get(self, path, timeout=LIMIT_S):
        code, headers, body = self.request("GET", path, timeout=timeout)
        if code != 200:
            raise HttpError(code, body.decode(), headers)
        return json.loads(body)

    def post(self, path, **body):
        code, headers, text = self.request("POST", path, {"model": self.model, **body})
        if code != 200:
            raise HttpError(code, text.decode(), headers)
        return json.loads(text)

    def stream(self, path, **body):
        """The stream's chunks, each with the time it came at. Ends with [DONE] or raises."""
        return list(self.open_stream(path, **body))

    def open_stream(self, path, timeout=LIMIT_S, **body):
        connection = self.connect(timeout)
        try:
            connection.request("POST", path,
                               json.dumps({"model": self.model, "stream": True, **body}),
                               {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise HttpError(answer.status, answer.read().decode(), dict(answer.getheaders()))
            for line in answer:
                if not line.startswith(b"data: "):
                    continue
                data = line[len(b"data: "):].strip()
                if data == b"[DONE]":
                    return
                yield {**json.loads(data), "at": time.monotonic()}
            raise AssertionError("the stream broke off without [DONE]")
        finally:
            connection.close()

    def metric(self, name, **labels):
        """The sum of a metric of the router over the samples with these labels."""
        return metric_sum(self.url + "/metrics", name, **labels)

    def ended_requests(self):
        """How many requests the router has ended, well or not."""
        return self.metric("baton_requests_total")
