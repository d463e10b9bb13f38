#!/usr/bin/env python3
"""gRPC as a stranger uses it: by server reflection, health checks, and grpcurl.

Usage (with the Python of the tools' environment): grpc_test.py PATH_OF_BATON TOOLS
"""
import json
import pathlib
import subprocess
import sys
import unittest

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))
from running_cluster import RunningCluster  # noqa: E402

BATON = None
TOOLS = None
LIMIT_S = 60


class Service:
    """Calls the methods of one service with and to plain dictionaries."""

    def __init__(self, channel, name):
        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        self.channel, self.service = channel, pool.FindServiceByName(name)

    def open(self, method, timeout=LIMIT_S, **fields):
        """What the library answers: a message, or a call that is a stream of them."""
        described = self.service.FindMethodByName(method)
        request = json_format.ParseDict(fields, GetMessageClass(described.input_type)())
        make = (self.channel.unary_stream if described.server_streaming
                else self.channel.unary_unary)
        return make(f"/{self.service.full_name}/{method}",
                    request_serializer=lambda m: m.SerializeToString(),
                    response_deserializer=GetMessageClass(described.output_type).FromString)(
                        request, timeout=timeout)

    def call(self, method, **fields):
        answer = self.open(method, **fields)
        as_dict = lambda m: json_format.MessageToDict(m, preserving_proto_field_name=True)  # noqa: E731
        return as_dict(answer) if isinstance(answer, Message) else map(as_dict, answer)


class GrpcTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(RunningCluster(BATON, "grpc", num_blocks=512))
        cls.channel = cls.enterClassContext(grpc.insecure_channel(cls.cluster.grpc))
        cls.inference = Service(cls.channel, "baton.v1.Inference")

    def generate(self, **fields):
        events = list(self.inference.call("Generate", **fields))
        text = "".join(e["delta"].get("text", "") for e in events if "delta" in e)
        return text, events

    def grpcurl(self, address, *arguments, data=None):
        command = [TOOLS / "grpcurl", "-plaintext", "-max-time", str(LIMIT_S)]
        if data is not None:
            command += ["-d", json.dumps(data)]
        return subprocess.run([*command, address, *arguments], capture_output=True, text=True,
                              timeout=LIMIT_S + 10)

    def test_generate_streams_the_same_text_as_http(self):
        text, events = self.generate(text="The LORD is my shepherd;",
                                     options={"max_tokens": 12, "temperature": 0})
        answer = self.cluster.post("/v1/completions", prompt="The LORD is my shepherd;",
                                   max_tokens=12, temperature=0)
        self.assertEqual(text, answer["choices"][0]["text"])
        self.assertEqual(events[-1]["usage"]["completion_tokens"], 12)
        self.assertGreater(len(events), 2)

    def test_generate_takes_chat_and_token_ids(self):
        text, _ = self.generate(chat={"messages": [{"role": "user", "content": "Hello!"}]},
                                options={"temperature": 0})
        self.assertIn("Grace be unto you", text)
        _, events = self.generate(token_ids={"ids": [0, 310, 420]}, options={"max_tokens": 3})
        ids = [i for e in events if "delta" in e for i in e["delta"].get("token_ids", [])]
        self.assertEqual(len(ids), 3)

    def test_bad_request_names_its_field_and_deadline_ends_the_call(self):
        with self.assertRaises(grpc.RpcError) as error:
            self.generate(text="x", options={"temperature": -1})
        self.assertEqual(error.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("temperature", error.exception.details())
        with self.assertRaises(grpc.RpcError) as error:
            list(self.inference.call("Generate", timeout=0.2, text="x",
                                     options={"max_tokens": 2000, "ignore_eos": True}))
        self.assertEqual(error.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        self.assertEqual(self.cluster.await_quiet(512), [])

    def test_tokenize_and_get_model_agree_with_http(self):
        ids = self.inference.call("Tokenize", text="In the beginning")["token_ids"]
        self.assertEqual(ids, self.cluster.post("/tokenize", prompt="In the beginning")["tokens"])
        model = self.inference.call("GetModel")
        self.assertEqual(model["name"], self.cluster.model)
        self.assertEqual(model["vocab_size"], 4096)

    def test_health_and_reflection_answer_on_every_process(self):
        for address in [self.cluster.grpc] + [w["address"] for w in self.cluster.workers()]:
            with self.subTest(address=address), grpc.insecure_channel(address) as channel:
                names = ProtoReflectionDescriptorDatabase(channel).get_services()
                self.assertIn("grpc.health.v1.Health", names)
                check = health_pb2_grpc.HealthStub(channel).Check
                answer = check(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
                self.assertEqual(answer.status, health_pb2.HealthCheckResponse.SERVING)

    def need_grpcurl(self):
        if not (TOOLS / "grpcurl").exists():
            self.skipTest("grpcurl is built for the nightly set alone, where Go is installed")

    def test_grpcurl_checks_the_health_of_every_process(self):
        self.need_grpcurl()
        for address in [self.cluster.grpc] + [w["address"] for w in self.cluster.workers()]:
            with self.subTest(address=address):
                health = self.grpcurl(address, "grpc.health.v1.Health/Check")
                self.assertIn("SERVING", health.stdout, health.stderr)

    def test_grpcurl_lists_describes_and_calls(self):
        self.need_grpcurl()
        listed = self.grpcurl(self.cluster.grpc, "list")
        self.assertIn("baton.v1.Inference", listed.stdout, listed.stderr)
        described = self.grpcurl(self.cluster.grpc, "describe", "baton.v1.Inference.Generate")
        self.assertIn("GenerateRequest", described.stdout, described.stderr)
        made = self.grpcurl(self.cluster.grpc, "baton.v1.Inference/Generate",
                            data={"text": "In the beginning", "options": {"max_tokens": 4}})
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertIn('"completion_tokens": 4', made.stdout)


if __name__ == "__main__":
    BATON, TOOLS = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))
    unittest.main(verbosity=2)
