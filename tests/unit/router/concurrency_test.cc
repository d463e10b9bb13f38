// How many requests of a tenant run at a time, over HTTP and gRPC together. The workers do not
// exist: what is admitted waits for them for two seconds and fails then, unless its client gives it
// up before.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <openssl/sha.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/base/clock.h"
#include "nlohmann/json.hpp"
#include "router/router_process.h"
#include "tests/unit/common/http/test_client.h"

namespace baton {
namespace {

using std::chrono::seconds;

constexpr int kTenants = 10;
constexpr int kTries = 10;                            // Of each tenant at once.
constexpr std::chrono::milliseconds kLeastRun(1900);  // A little less than `no_worker_grace`.
constexpr seconds kLimit(60);

int AllowedOf(int tenant) { return 1 + tenant % 4; }

// One request and what became of it.
struct Outcome {
  Time sent{};
  Time ended{};
  bool is_admitted = false;
};

class ConcurrencyTest : public testing::Test {
 protected:
  void SetUp() override {
    RouterConfig config;
    config.model = BATON_SOURCE_DIR "/deploy/models/tiny-kjv";
    config.prefill = {"127.0.0.1:1"};
    config.decode = {"127.0.0.1:2"};
    config.http_port = 0;
    config.grpc_port = 0;
    const std::string base = absl::StrCat(testing::TempDir(), "/baton-concurrency-test-", getpid());
    config.ready_file = base + ".json";
    config.api_keys_file = base + "-keys";
    std::ofstream keys(config.api_keys_file);
    for (int t = 0; t < kTenants; ++t) {
      const std::string key = KeyOf(t);
      std::string digest(SHA256_DIGEST_LENGTH, '\0');
      SHA256(reinterpret_cast<const uint8_t*>(key.data()), key.size(),
             reinterpret_cast<uint8_t*>(digest.data()));
      keys << "tenant" << t << " " << absl::BytesToHexString(digest)
           << " concurrency=" << AllowedOf(t) << "\n";
    }
    keys.close();
    auto process = RouterProcess::Start(config);
    ASSERT_TRUE(process.ok()) << process.status();
    process_ = *std::move(process);
    std::ifstream in(config.ready_file);
    const nlohmann::json ready = nlohmann::json::parse(in);
    const std::string url = ready["http_url"];
    port_ = static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1)));
    stub_ = v1::Inference::NewStub(grpc::CreateChannel(ready["address"].get<std::string>(),
                                                       grpc::InsecureChannelCredentials()));
  }

  static std::string KeyOf(int tenant) { return absl::StrCat("key-of-", tenant); }

  static void Send(http::TestClient& client, int tenant, const std::string& body) {
    client.Send(absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer ",
                             KeyOf(tenant), "\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  }
  static constexpr const char* kBody = R"({"prompt":[5,6,7],"max_tokens":4})";

  // What is said to one that is not admitted, and to one that is, is looked at here.
  Outcome OverHttp(int tenant) const {
    http::TestClient client(port_);
    Outcome outcome{.sent = SteadyNow()};
    Send(client, tenant, kBody);
    const http::WireResponse answer = client.Read();
    outcome.ended = SteadyNow();
    outcome.is_admitted = answer.status == 503;
    EXPECT_TRUE(outcome.is_admitted || answer.status == 429) << answer.status << answer.body;
    if (answer.status == 429) {
      EXPECT_GE(std::atoi(answer.Header("Retry-After").c_str()), 1) << answer.head;
      EXPECT_NE(answer.body.find("rate_limit_exceeded"), std::string::npos) << answer.body;
      EXPECT_NE(answer.body.find(absl::StrCat("You have ", AllowedOf(tenant), " requests running")),
                std::string::npos)
          << answer.body;
    }
    return outcome;
  }

  static v1::GenerateRequest GrpcRequest() {
    v1::GenerateRequest request;
    for (int token : {5, 6, 7}) request.mutable_token_ids()->add_ids(token);
    request.mutable_options()->set_max_tokens(4);
    return request;
  }

  Outcome OverGrpc(int tenant) const {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + KeyOf(tenant));
    Outcome outcome{.sent = SteadyNow()};
    const auto reader = stub_->Generate(&context, GrpcRequest());
    v1::GenerateEvent event;
    while (reader->Read(&event)) {
    }
    const grpc::Status status = reader->Finish();
    outcome.ended = SteadyNow();
    outcome.is_admitted = status.error_code() == grpc::StatusCode::UNAVAILABLE;
    EXPECT_TRUE(outcome.is_admitted || status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED)
        << status.error_code() << status.error_message();
    return outcome;
  }

  std::string Page(const std::string& path) const { return http::TestClient(port_).Get(path).body; }
  int64_t Queued() const {
    return nlohmann::json::parse(Page("/status"))["router"]["queued_requests"];
  }
  int64_t Cancelled() const {
    const std::string page = Page("/metrics");
    const std::string name = "baton_requests_total{outcome=\"cancelled\"} ";
    const size_t at = page.find(name);
    return at == std::string::npos ? 0 : std::atoll(page.c_str() + at + name.size());
  }
  template <typename Condition>
  static void Await(const Condition& is_met, const char* what) {
    const Time until = SteadyNow() + kLimit;
    while (!is_met()) {
      ASSERT_LT(SteadyNow(), until) << what;
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  // Sends a request of tenant 0, who may have one, another beside it, and lets it go. False: that
  // took so long that the first may have ended by itself.
  template <typename Ask, typename Leave>
  bool LeavesItsPlace(const Ask& ask, const Leave& leave) const {
    const Time begin = SteadyNow();
    const auto is_late = [begin] { return SteadyNow() - begin > kLeastRun * 3 / 4; };
    const int64_t cancelled = Cancelled();
    ask();
    Await([&] { return Queued() == 1 || is_late(); }, "it is admitted");
    http::TestClient another(port_);
    Send(another, 0, kBody);
    const int status = another.Read().status;
    const bool judges = !is_late();
    leave();
    Await([&] { return Cancelled() > cancelled || (is_late() && Queued() == 0); }, "its end");
    if (judges) {
      EXPECT_EQ(status, 429);
    }
    return judges && Cancelled() > cancelled;
  }

  std::unique_ptr<RouterProcess> process_;
  uint16_t port_ = 0;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

// Each that is refused came while so many ran as may, and never did more. When one began and ended
// nobody outside sees, but it was between the request and its answer, and lasted for two seconds.
void CheckOne(int tenant, const std::vector<Outcome>& all) {
  const int allowed = AllowedOf(tenant);
  const auto count = [&all](auto is_one) {
    return std::count_if(all.begin(), all.end(),
                         [&](const Outcome& o) { return o.is_admitted && is_one(o); });
  };
  EXPECT_GE(count([](const Outcome&) { return true; }), allowed) << tenant;
  for (const Outcome& one : all) {
    if (one.is_admitted) {
      const Time certain = one.ended - kLeastRun;  // It runs; others for certain, too:
      if (certain > one.sent + kLeastRun) continue;
      const auto running = count([&](const Outcome& other) {
        return other.ended - kLeastRun <= certain && certain < other.sent + kLeastRun;
      });
      EXPECT_LE(running, allowed) << tenant;
    } else {
      const auto may_run = count(
          [&](const Outcome& other) { return other.sent < one.ended && one.sent < other.ended; });
      EXPECT_GE(may_run, allowed) << "tenant " << tenant << " was refused without need";
    }
  }
}

TEST_F(ConcurrencyTest, OfAStormOfTenTenantsEachHasExactlyAsManyRunningAsItMay) {
  std::vector<std::vector<Outcome>> outcomes(kTenants, std::vector<Outcome>(kTries));
  absl::Notification go;
  {
    std::vector<std::jthread> clients;
    for (int i = 0; i < kTenants * kTries; ++i) {
      clients.emplace_back([&, tenant = i % kTenants, number = i / kTenants] {
        go.WaitForNotification();
        outcomes[tenant][number] = number % 2 == 0 ? OverHttp(tenant) : OverGrpc(tenant);
      });
    }
    go.Notify();
  }
  for (int t = 0; t < kTenants; ++t) CheckOne(t, outcomes[t]);
  EXPECT_EQ(Queued(), 0);
  // All have ended, so all may run again.
  std::vector<std::jthread> clients;
  for (int t = 0; t < kTenants; ++t) {
    for (int n = 0; n < AllowedOf(t); ++n) {
      clients.emplace_back(
          [this, t, n] { EXPECT_TRUE((n % 2 == 0 ? OverGrpc(t) : OverHttp(t)).is_admitted) << t; });
    }
  }
}

TEST_F(ConcurrencyTest, AClientThatGoesGivesItsPlaceBack) {
  int tries = 0;
  for (int done = 0; done < 6; ++tries) {
    ASSERT_LT(tries, 60) << "after " << done << " the place was not there again";
    if (done % 2 == 0) {
      http::TestClient client(port_);
      done += LeavesItsPlace([&] { Send(client, 0, kBody); }, [&] { client.Close(); });
      continue;
    }
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + KeyOf(0));
    std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>> reader;
    done += LeavesItsPlace([&] { reader = stub_->Generate(&context, GrpcRequest()); },
                           [&] {
                             context.TryCancel();
                             EXPECT_FALSE(reader->Finish().ok());
                           });
  }
}

TEST_F(ConcurrencyTest, WhoHasItsAnswerMayAskAgainAtOnce) {
  http::TestClient client(port_);
  for (int i = 0; i < 50; ++i) {
    Send(client, 0, R"({"prompt":[5,6,7],"max_tokens":0,"echo":true})");  // Needs no worker.
    EXPECT_EQ(client.Read().status, 200);
  }
  EXPECT_TRUE(OverHttp(0).is_admitted);  // And fails.
  EXPECT_TRUE(OverGrpc(0).is_admitted);
  EXPECT_TRUE(OverHttp(0).is_admitted);
}

TEST_F(ConcurrencyTest, ARequestThatIsNotGoodHasNoPlace) {
  http::TestClient client(port_);
  for (const char* body : {R"({"prompt":[5],"max_tokens":-1})", R"({"prompt":[99999999]})",
                           "no JSON", R"({"prompt":[5],"max_tokens":4,"model":"another"})"}) {
    Send(client, 0, body);
    const int status = client.Read().status;
    EXPECT_TRUE(status == 400 || status == 404) << body << status;
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + KeyOf(0));
    v1::GenerateRequest bad = GrpcRequest();
    bad.mutable_options()->set_max_tokens(-1);
    EXPECT_EQ(stub_->Generate(&context, bad)->Finish().error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_TRUE(OverGrpc(0).is_admitted);
}

}  // namespace
}  // namespace baton
