#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/call_events.h"
#include "common/rpc/gate.h"
#include "common/rpc/message_wire.h"
#include "common/rpc/seal.h"
#include "common/rpc/session.h"
#include "common/rpc/wire_fields.h"
#include "tests/unit/common/rpc/wire_samples.h"

// tests/golden/wire: sealed messages as a release has sent them, one a line, "NAME HEX". The file
// of the present protocol is what the next one has to go on reading.
namespace baton {
namespace {

constexpr Incarnation kMeant = 77;
constexpr uint32_t kRequestSeal = 0x1234;
constexpr int kSamples = 4;  // Of each message.

std::string FileOf(int32_t protocol) {
  return absl::StrCat(BATON_SOURCE_DIR, "/tests/golden/wire/protocol_", protocol, ".txt");
}

// Name and bytes of each message of a file; none if it is not there.
std::vector<std::pair<std::string, std::string>> ReadRecorded(int32_t protocol) {
  std::vector<std::pair<std::string, std::string>> messages;
  std::ifstream file(FileOf(protocol));
  for (std::string name, hex; file >> name >> hex;) {
    messages.emplace_back(name, absl::HexStringToBytes(hex));
  }
  return messages;
}

// What is read of a message, written again; the error with which it is not taken.
using Rewrite = std::function<absl::StatusOr<std::string>(const std::string&)>;

template <typename Proto>
std::string SealedBytes(Proto proto) {
  Seal(&proto);
  return proto.SerializeAsString();
}

template <typename Proto>
Rewrite OfRequest() {
  return [](const std::string& bytes) -> absl::StatusOr<std::string> {
    Proto proto;
    if (!proto.ParseFromString(bytes)) return absl::DataLossError("not such a message");
    const auto taken = RequestGate(kMeant, kLimits).Take(proto);
    if (!taken.ok()) return taken.status();
    Proto again;
    ToProto(*taken, &again);
    again.set_expected_incarnation(kMeant);
    return SealedBytes(again);
  };
}

template <typename Proto>
Rewrite OfEvent() {
  return [](const std::string& bytes) -> absl::StatusOr<std::string> {
    Proto proto;
    if (!proto.ParseFromString(bytes)) return absl::DataLossError("not such a message");
    CallEvents events(kLimits, /*max_outputs=*/1 << 20, kRequestSeal);
    const auto taken = events.Take(proto);
    if (!taken.ok()) return taken.status();
    Proto again;
    std::visit(
        [&again](const auto& event) {
          if constexpr (requires { ToProto(event, &again); }) ToProto(event, &again);
        },
        **taken);
    EventSealer(kRequestSeal).Seal(&again);
    return again.SerializeAsString();
  };
}

// `take`: TakeHello and the like.
template <typename Proto, typename Take>
Rewrite OfAnswer(Take take) {
  return [take](const std::string& bytes) -> absl::StatusOr<std::string> {
    Proto proto;
    if (!proto.ParseFromString(bytes)) return absl::DataLossError("not such a message");
    const auto taken = take(proto);
    if (!taken.ok()) return taken.status();
    Proto again;
    ToProto(*taken, &again);
    return SealedBytes(again);
  };
}

// What was said of a call in a session, said again.
absl::StatusOr<v1::CallAsked> Again(const v1::CallAsked& asked) {
  const RequestGate gate(kMeant, kLimits);
  v1::CallAsked again;
  again.set_call(asked.call());
  const auto take = [&](const auto& request, auto* to) {
    const auto taken = gate.Take(request, Came::kInSession);
    if (taken.ok()) ToProto(*taken, to);
    return taken.status();
  };
  absl::Status status;
  if (asked.has_decode()) status = take(asked.decode(), again.mutable_decode());
  if (asked.has_prefill()) status = take(asked.prefill(), again.mutable_prefill());
  if (asked.has_rebind()) status = take(asked.rebind(), again.mutable_rebind());
  if (asked.has_send()) status = take(asked.send(), again.mutable_send());
  if (asked.has_cancel()) again.mutable_cancel();
  if (!status.ok()) return status;
  return again;
}

absl::StatusOr<v1::CallTold> Again(const v1::CallTold& told) {
  v1::CallTold again;
  again.set_call(told.call());
  const auto take = [](const auto& event, auto* to) {
    const auto taken = CallEvents(kLimits, 1 << 20, std::nullopt).Take(event);
    if (!taken.ok()) return taken.status();
    std::visit(
        [to](const auto& one) {
          if constexpr (requires { ToProto(one, to); }) ToProto(one, to);
        },
        **taken);
    return absl::OkStatus();
  };
  absl::Status status;
  if (told.has_decode()) status = take(told.decode(), again.mutable_decode());
  if (told.has_prefill()) status = take(told.prefill(), again.mutable_prefill());
  if (told.has_end()) {
    again.mutable_end()->set_code(told.end().code());
    again.mutable_end()->set_message(told.end().message());
  }
  if (!status.ok()) return status;
  return again;
}

void SetOpen(v1::ToRouter*) {}
void SetOpen(v1::ToWorker* message) {
  message->mutable_open()->set_expected_incarnation(kMeant);
  message->mutable_open()->set_key(kRequestSeal);
}

// The first message of a session.
template <typename Message>
Rewrite OfFrame() {
  return [](const std::string& bytes) -> absl::StatusOr<std::string> {
    v1::SessionFrame frame;
    if (!frame.ParseFromString(bytes)) return absl::DataLossError("not such a message");
    SessionInput input;
    input.set_key(kRequestSeal);
    Message message, again;
    if (absl::Status taken = input.Take(frame, &message); !taken.ok()) return taken;
    again.set_number(1);
    SetOpen(&again);
    for (const auto& call : message.calls()) {
      const auto one = Again(call);
      if (!one.ok()) return one.status();
      *again.add_calls() = *one;
    }
    return SealFrame(again, kRequestSeal).SerializeAsString();
  };
}

const std::map<std::string, Rewrite>& Rewrites() {
  static const std::map<std::string, Rewrite> all = {
      {"DecodeRequest", OfRequest<v1::DecodeRequest>()},
      {"PrefillRequest", OfRequest<v1::PrefillRequest>()},
      {"RebindRequest", OfRequest<v1::RebindRequest>()},
      {"SendRequest", OfRequest<v1::SendRequest>()},
      {"DecodeEvent", OfEvent<v1::DecodeEvent>()},
      {"PrefillEvent", OfEvent<v1::PrefillEvent>()},
      {"HelloResponse", OfAnswer<v1::HelloResponse>(TakeHello)},
      {"WorkerStatus", OfAnswer<v1::WorkerStatus>([](const v1::WorkerStatus& status) {
         return TakeStatus(status, status.incarnation());
       })},
      {"ToWorker", OfFrame<v1::ToWorker>()},
      {"ToRouter", OfFrame<v1::ToRouter>()}};
  return all;
}

template <typename Proto, typename Message>
std::string RequestLine(const char* name, const Message& message) {
  Proto proto;
  ToProto(message, &proto);
  proto.set_expected_incarnation(kMeant);
  return absl::StrCat(name, " ", absl::BytesToHexString(SealedBytes(proto)), "\n");
}

template <typename Proto, typename Event>
std::string EventLine(const char* name, const Event& event) {
  Proto proto;
  ToProto(event, &proto);
  EventSealer(kRequestSeal).Seal(&proto);
  return absl::StrCat(name, " ", absl::BytesToHexString(proto.SerializeAsString()), "\n");
}

template <typename Proto, typename Message>
std::string AnswerLine(const char* name, const Message& message) {
  Proto proto;
  ToProto(message, &proto);
  return absl::StrCat(name, " ", absl::BytesToHexString(SealedBytes(proto)), "\n");
}

template <typename Message, typename Call>
std::string FrameLine(const char* name, std::vector<Call> calls) {
  SessionOutput<Message, Call> output;
  uint64_t number = 0;
  for (Call& call : calls) {
    call.set_call(++number);
    output.Add(std::move(call));
  }
  Message message;
  SetOpen(&message);
  const v1::SessionFrame frame = SealFrame(output.Next(std::move(message)), kRequestSeal);
  return absl::StrCat(name, " ", absl::BytesToHexString(frame.SerializeAsString()), "\n");
}

std::string ToWorkerLine(WireSamples& samples) {
  std::vector<v1::CallAsked> asked(5);
  ToProto(samples.Decode(), asked[0].mutable_decode());
  ToProto(samples.Prefill(), asked[1].mutable_prefill());
  ToProto(samples.Rebind(), asked[2].mutable_rebind());
  ToProto(samples.Send(), asked[3].mutable_send());
  asked[4].mutable_cancel();
  return FrameLine<v1::ToWorker>("ToWorker", std::move(asked));
}

std::string ToRouterLine(WireSamples& samples) {
  std::vector<v1::CallTold> told(5);
  ToProto(samples.Reserved(), told[0].mutable_decode());
  ToProto(samples.HandoffFailed(), told[1].mutable_decode());
  ToProto(samples.Prefilled(), told[2].mutable_prefill());
  ToProto(samples.Scores(), told[3].mutable_prefill());
  told[4].mutable_end()->set_code(14);
  told[4].mutable_end()->set_message("the worker is shutting down");
  return FrameLine<v1::ToRouter>("ToRouter", std::move(told));
}

// A file of this release's messages.
std::string Record() {
  std::string text;
  for (int seed = 1; seed <= kSamples; ++seed) {
    WireSamples samples(seed);
    absl::StrAppend(&text, RequestLine<v1::DecodeRequest>("DecodeRequest", samples.Decode()),
                    RequestLine<v1::PrefillRequest>("PrefillRequest", samples.Prefill()),
                    RequestLine<v1::RebindRequest>("RebindRequest", samples.Rebind()),
                    RequestLine<v1::SendRequest>("SendRequest", samples.Send()),
                    EventLine<v1::DecodeEvent>("DecodeEvent", samples.Reserved()),
                    EventLine<v1::DecodeEvent>("DecodeEvent", samples.TokensOf(seed)),
                    EventLine<v1::DecodeEvent>("DecodeEvent", samples.HandoffFailed()),
                    EventLine<v1::PrefillEvent>("PrefillEvent", samples.Prefilled()),
                    EventLine<v1::PrefillEvent>("PrefillEvent", samples.HandoffFailed()),
                    EventLine<v1::PrefillEvent>("PrefillEvent", samples.Scores()),
                    AnswerLine<v1::HelloResponse>("HelloResponse", samples.Hello()),
                    AnswerLine<v1::WorkerStatus>("WorkerStatus", samples.Status()),
                    ToWorkerLine(samples), ToRouterLine(samples));
  }
  return text;
}

TEST(RecordedWireTest, ThisProtocolReadsAndWritesWhatItsReleaseHasSent) {
  const auto messages = ReadRecorded(kProtocolVersion);
  ASSERT_FALSE(messages.empty()) << "protocol " << kProtocolVersion << " was not recorded; write "
                                 << FileOf(kProtocolVersion) << ":\n"
                                 << Record();
  std::map<std::string, int> counts;
  for (const auto& [name, bytes] : messages) {
    ASSERT_TRUE(Rewrites().contains(name)) << name;
    ++counts[name];
    const absl::StatusOr<std::string> again = Rewrites().at(name)(bytes);
    ASSERT_TRUE(again.ok()) << name << ": " << again.status();
    EXPECT_EQ(absl::BytesToHexString(*again), absl::BytesToHexString(bytes))
        << name << ": the wire has changed. Raise kProtocolVersion, and record the new protocol "
        << "beside this one";
  }
  EXPECT_EQ(counts.size(), Rewrites().size()) << "a kind of message was not recorded";
  for (const auto& [name, count] : counts) EXPECT_GE(count, kSamples) << name;
}

TEST(RecordedWireTest, TheProtocolBeforeIsRead) {
  // Of those before 3 nothing was recorded.
  for (const auto& [name, bytes] : ReadRecorded(kProtocolVersion - 1)) {
    const absl::StatusOr<std::string> again = Rewrites().at(name)(bytes);
    EXPECT_TRUE(again.ok()) << name << ": " << again.status();
  }
  EXPECT_EQ(ReadRecorded(kProtocolVersion - 1).empty(), kProtocolVersion <= 3);
}

// Taken, whoever is meant; the seal of the events that follow.
template <typename Proto>
uint32_t TakeRequest(const std::string& bytes) {
  constexpr int32_t kMost = 1 << 20;
  Proto proto;
  EXPECT_TRUE(proto.ParseFromString(bytes));
  const RequestGate gate(proto.expected_incarnation(),
                         {.vocab_size = kMost, .max_model_len = kMost});
  const auto taken = gate.Take(proto);
  EXPECT_TRUE(taken.ok()) << taken.status();
  return proto.crc32c();
}

// What a node of this release had said, of which a router of protocol 1 was told that.
std::vector<v1::DecodeEvent> SaidOf(v1::DecodeEvent told) {
  if (told.has_reserved()) {
    v1::Reserved* const reserved = told.mutable_reserved();
    const auto ranks = ReadEndpoint("data_endpoint", reserved->data_endpoint());
    EXPECT_TRUE(ranks.ok()) << ranks.status();
    reserved->clear_data_endpoint();
    WriteRanks(*ranks, reserved->mutable_ranks());
  }
  return {told};
}

std::vector<v1::PrefillEvent> SaidOf(v1::PrefillEvent told) {
  std::vector<v1::PrefillEvent> said;
  for (const v1::PromptLogprob& one : told.prefilled().prompt_logprobs()) {
    *said.emplace_back().mutable_scores()->add_prompt_logprobs() = one;
  }
  if (told.has_prefilled()) told.mutable_prefilled()->clear_prompt_logprobs();
  said.push_back(told);
  return said;
}

// The last of what was said is told with these bytes, and nothing is told of what was said before.
template <typename Proto>
void ExpectTold(const std::string& bytes, EventSealer& sealer) {
  Proto told;
  ASSERT_TRUE(told.ParseFromString(bytes));
  std::vector<Proto> said = SaidOf(told);
  for (size_t i = 0; i + 1 < said.size(); ++i) EXPECT_FALSE(sealer.Seal(&said[i]));
  EXPECT_TRUE(sealer.Seal(&said.back()));
  EXPECT_EQ(absl::BytesToHexString(said.back().SerializeAsString()), absl::BytesToHexString(bytes));
}

// Calls of a router of commit babab72: requests that its code has sealed, and behind each the
// events of a later release, all of which its code has taken.
TEST(RecordedWireTest, ARouterOfProtocol1IsUnderstoodAndToldWhatItUnderstands) {
  std::map<std::string, int> counts;
  std::optional<EventSealer> sealer;
  for (const auto& [name, bytes] : ReadRecorded(1)) {
    ++counts[name];
    if (name == "DecodeRequest") {
      sealer.emplace(TakeRequest<v1::DecodeRequest>(bytes), 1);
    } else if (name == "PrefillRequest") {
      sealer.emplace(TakeRequest<v1::PrefillRequest>(bytes), 1);
    } else if (name == "RebindRequest") {
      TakeRequest<v1::RebindRequest>(bytes);
    } else if (name == "SendRequest") {
      TakeRequest<v1::SendRequest>(bytes);
    } else if (name == "DecodeEvent") {
      ExpectTold<v1::DecodeEvent>(bytes, *sealer);
    } else {
      ASSERT_EQ(name, "PrefillEvent");
      ExpectTold<v1::PrefillEvent>(bytes, *sealer);
    }
  }
  for (const char* name : {"DecodeRequest", "PrefillRequest", "DecodeEvent", "PrefillEvent"}) {
    EXPECT_GE(counts[name], 4) << name;
  }
}

TEST(RecordedWireTest, ADamagedMessageIsNotTaken) {
  for (auto [name, bytes] : ReadRecorded(kProtocolVersion)) {
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x10);
    EXPECT_FALSE(Rewrites().at(name)(bytes).ok()) << name;
  }
}

}  // namespace
}  // namespace baton
