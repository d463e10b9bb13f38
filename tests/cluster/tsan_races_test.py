#!/usr/bin/env python3
"""Whose a race is, by made-up reports. Usage: tsan_races_test.py [unittest arguments]"""
import sys
import unittest

from tsan_races import ROOT, about_baton

HEAD = "WARNING: ThreadSanitizer: {} (pid=1)\n"
OURS = "baton::PrefillNode::OnBroken(baton::CallBroken) ../../prefill_worker/node.cc:50 (program+0x1)"
STD = "std::vector<int>::push_back(int&&) /usr/include/c++/12/bits/stl_vector.h:1290 (program+0x2)"
TABLE = ("absl::debian3::container_internal::raw_hash_set<P, H, E, A>::find(K) "
         "/usr/include/absl/container/internal/raw_hash_set.h:2000 (program+0x3)")
INLINED = ("absl::debian3::inlined_vector_internal::Storage<int, 4>::Append() "
           "/usr/include/absl/container/internal/inlined_vector.h:100 (program+0x4)")
JSON = "nlohmann::json_v3::basic_json<M>::operator[](K) /usr/include/nlohmann/json.hpp:3 (program+0x5)"
ASIO = "boost::asio::detail::op_queue<O>::push(O*) /usr/include/boost/asio/op_queue.hpp:9 (program+0x6)"
GRPC = "grpc::CompletionQueue::Next(void**) /usr/include/grpcpp/completion_queue.h:180 (program+0x7)"
STATUS = "absl::debian3::status_internal::StatusRep::Unref() /usr/include/absl/status.h:8 (program+0x8)"
MEMMOVE = "memmove <null> (libtsan.so.2+0x9)"
NEW = "operator new(unsigned long) <null> (libtsan.so.2+0xa)"
DELETE = "operator delete(void*) <null> (libtsan.so.2+0xb)"
ON_READ = "baton::ClientCall<Q, A>::OnReadDone(bool) ../../common/rpc/client_call.h:73 (program+0xe)"
PARSE = "baton::v1::DecodeEvent::Clear() ../../build/tsan/proto/decode.pb.cc:1009 (program+0x11)"
RECEIVE = ("grpc::internal::CallOpRecvMessage<baton::v1::DecodeEvent>::FinishOp(bool*) "
           "/usr/include/grpcpp/impl/call_op_set.h:451 (program+0x12)")
LIBRARY = "<null> <null> (libgrpc.so.29+0x10)"


def race(*stacks, kind="data race"):
    text = HEAD.format(kind)
    for i, stack in enumerate(stacks):
        text += f"  {'Previous write' if i else 'Write'} of size 8 at 0x1 by thread T{i}:\n"
        text += "".join(f"    #{n} {frame}\n" for n, frame in enumerate(stack)) + "\n"
    return text + "  Location is heap block\n    #0 " + OURS + "\n"


class WhoseRaceTest(unittest.TestCase):
    def test_an_access_of_our_code_is_ours_on_either_side(self):
        self.assertTrue(about_baton(race([OURS], [LIBRARY])))
        self.assertTrue(about_baton(race([LIBRARY], [OURS])))

    def test_code_outside_of_the_namespace_is_ours_by_its_file(self):
        for path in ("../../tests", f"{ROOT}/tests"):
            self.assertTrue(about_baton(race([f"Ask(int) {path}/a.cc:1 (program+0xd)"], [GRPC])))

    def test_a_container_of_a_header_belongs_to_the_code_that_uses_it(self):
        for container in (STD, TABLE, INLINED, JSON, ASIO, MEMMOVE):
            self.assertTrue(about_baton(race([container, OURS], [LIBRARY])), container)
            self.assertTrue(about_baton(race([container, STD, container, OURS], [GRPC])), container)

    def test_memory_that_the_unseen_libraries_order_is_theirs(self):
        for theirs in (GRPC, STATUS, LIBRARY):
            self.assertFalse(about_baton(race([theirs, OURS], [theirs, OURS])), theirs)
            self.assertFalse(about_baton(race([STD, theirs, OURS], [MEMMOVE, theirs])), theirs)

    def test_memory_that_grpc_uses_between_its_making_and_its_freeing_is_trusted_but_ours_is_not(self):
        for allocation in (NEW, DELETE):
            self.assertFalse(about_baton(race([allocation, OURS], [GRPC])))
            self.assertFalse(about_baton(race([LIBRARY], [allocation, STD, OURS])))
            self.assertTrue(about_baton(race([allocation, OURS], [OURS])))
            self.assertTrue(about_baton(race([allocation, OURS], [STD, OURS])))

    def test_the_next_event_of_a_call_is_read_when_it_was_asked_for(self):
        self.assertFalse(about_baton(race([PARSE, RECEIVE], [PARSE, OURS, ON_READ])))
        self.assertTrue(about_baton(race([OURS, ON_READ], [OURS, ON_READ])))
        self.assertTrue(about_baton(race([PARSE, OURS], [RECEIVE])))

    def test_where_the_memory_was_made_does_not_count(self):
        self.assertFalse(about_baton(race([GRPC], [LIBRARY])))

    def test_whatever_is_no_race_is_ours(self):
        for kind in ("heap-use-after-free", "lock-order-inversion (potential deadlock)",
                     "thread leak"):
            self.assertTrue(about_baton(race([GRPC], [LIBRARY], kind=kind)), kind)


if __name__ == "__main__":
    unittest.main(verbosity=2)
