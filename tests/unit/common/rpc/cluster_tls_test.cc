#include "common/rpc/cluster_tls.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <memory>
#include <set>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/rpc/audit_call.h"
#include "common/rpc/method_roles.h"
#include "common/rpc/worker_link.h"
#include "common/rpc/worker_links.h"
#include "tests/unit/common/rpc/tls_cluster.h"

namespace baton {
namespace {

namespace pb = google::protobuf;

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;

constexpr char kReflection[] = "grpc.reflection.v1alpha.ServerReflection";

// The names of the services that a server has, as it tells them itself.
std::set<std::string> ServedServices(const std::string& address,
                                     const std::shared_ptr<grpc::ChannelCredentials>& admin) {
  const std::string list_services("\x3a\x01*", 3);  // Field 7 of a ServerReflectionRequest.
  std::string answer;
  CallMethod(address, admin, absl::StrCat("/", kReflection, "/ServerReflectionInfo"),
             list_services, &answer);
  const pb::Descriptor* type = pb::DescriptorPool::generated_pool()->FindMessageTypeByName(
      "grpc.reflection.v1alpha.ServerReflectionResponse");
  pb::DynamicMessageFactory factory;
  const std::unique_ptr<pb::Message> message(factory.GetPrototype(type)->New());
  EXPECT_TRUE(message->ParseFromString(answer));
  const pb::Message& list = message->GetReflection()->GetMessage(
      *message, type->FindFieldByName("list_services_response"));
  const pb::FieldDescriptor* services = list.GetDescriptor()->FindFieldByName("service");
  std::set<std::string> names;
  for (int i = 0; i < list.GetReflection()->FieldSize(list, services); ++i) {
    const pb::Message& one = list.GetReflection()->GetRepeatedMessage(list, services, i);
    names.insert(
        one.GetReflection()->GetString(one, one.GetDescriptor()->FindFieldByName("name")));
  }
  return names;
}

// The paths of all their methods.
std::set<std::string> MethodsOf(const std::set<std::string>& services) {
  std::set<std::string> paths;
  for (const std::string& name : services) {
    const auto* service = pb::DescriptorPool::generated_pool()->FindServiceByName(name);
    EXPECT_NE(service, nullptr) << name;
    for (int i = 0; service != nullptr && i < service->method_count(); ++i) {
      paths.insert(absl::StrCat("/", name, "/", service->method(i)->name()));
    }
  }
  return paths;
}

class ClusterTlsTest : public ::testing::TestWithParam<Role> {
 protected:
  std::shared_ptr<grpc::ChannelCredentials> Client(const TlsFiles& files) const {
    return AnyServer(files, authority_.certificate_pem());
  }
  std::shared_ptr<grpc::ChannelCredentials> Client(TlsRole role) const {
    return Client(NewFiles(authority_, IdOf(role), UnixSeconds()));
  }

  const CertificateAuthority authority_ = NewAuthority("test.local", UnixSeconds());
};
INSTANTIATE_TEST_SUITE_P(Workers, ClusterTlsTest, ::testing::Values(Role::kPrefill, Role::kDecode));

TEST_P(ClusterTlsTest, EveryMethodThatAServerHasIsInTheListOfRoles) {
  const TlsWorker worker(authority_, GetParam());
  const std::set<std::string> services =
      ServedServices(worker.address(), Client(TlsRole::kAdmin));
  EXPECT_THAT(services, SizeIs(5));
  EXPECT_THAT(services,
              IsSupersetOf({std::string("baton.v1.Cluster"), std::string(kReflection)}));
  for (const std::string& path : MethodsOf(services)) EXPECT_TRUE(RolesFor(path)) << path;
}

TEST_P(ClusterTlsTest, ARoleMayCallItsMethodsAndNoOthers) {
  const TlsWorker worker(authority_, GetParam(), /*full=*/true);
  std::set<std::string> paths =
      MethodsOf(ServedServices(worker.address(), Client(TlsRole::kAdmin)));
  paths.insert("/baton.v1.Cluster/Unlisted");
  for (const TlsRole role : kTlsRoles) {
    const auto client = Client(role);
    for (const std::string& path : paths) {
      const grpc::StatusCode code = CallMethod(worker.address(), client, path);
      const auto roles = RolesFor(path);
      const bool allowed = roles.has_value() && roles->count(role) > 0;
      EXPECT_NE(code, grpc::StatusCode::UNAVAILABLE) << RoleWord(role) << " " << path;
      EXPECT_EQ(code != grpc::StatusCode::PERMISSION_DENIED, allowed)
          << RoleWord(role) << " " << path << " " << code;
    }
  }
}

TEST_P(ClusterTlsTest, WhoIsNotOfTheReleaseDoesNotGetThroughTheHandshake) {
  const TlsWorker worker(authority_, GetParam());
  const CertificateAuthority other = NewAuthority("test.local", UnixSeconds());
  const SpiffeId router = IdOf(TlsRole::kRouter);
  TlsFiles broken = NewFiles(authority_, router, UnixSeconds());
  broken.chain_pem = authority_.certificate_pem();  // The CA's own, whose key is not there.
  const std::map<std::string, std::shared_ptr<grpc::ChannelCredentials>> strangers = {
      {"plaintext", grpc::InsecureChannelCredentials()},
      {"no certificate", Client(TlsFiles())},
      {"other CA", Client(NewFiles(other, router, UnixSeconds()))},
      {"expired", Client(NewFiles(authority_, router, UnixSeconds() - (kLeafDays + 1) * kDayS))},
      {"of the future", Client(NewFiles(authority_, router, UnixSeconds() + 2 * kBackdateS))},
      {"other release", Client(NewFiles(authority_, IdOf(TlsRole::kRouter, "x"), UnixSeconds()))},
      {"the CA itself", Client(TlsFiles{.key_pem = authority_.key_pem(),
                                        .chain_pem = authority_.certificate_pem()})},
      {"not its key", Client(broken)},
  };
  for (const auto& [name, credentials] : strangers) {
    EXPECT_EQ(CallMethod(worker.address(), credentials, "/baton.v1.Cluster/Hello"),
              grpc::StatusCode::UNAVAILABLE)
        << name;
  }
  EXPECT_EQ(CallMethod(worker.address(), Client(TlsRole::kRouter), "/baton.v1.Cluster/Hello"),
            grpc::StatusCode::OK);
}

TEST_P(ClusterTlsTest, ALinkAndAnAuditGoToAWorkerOfTheListedRoleAlone) {
  const TlsWorker worker(authority_, GetParam(), /*full=*/true);
  const TlsParty router(authority_, TlsRole::kRouter);
  const Role other = GetParam() == Role::kPrefill ? Role::kDecode : Role::kPrefill;
  FakeInbox<RouterMail> inbox;
  WorkerLinks links({.workers = {{GetParam(), worker.address()}}, .tls = router.tls.get()}, &inbox);
  links.Start();
  EXPECT_TRUE(inbox.Next<WorkerUp>().has_value());
  FakeInbox<RouterMail> misled_inbox;
  WorkerLinks misled({.workers = {{other, worker.address()}}, .tls = router.tls.get()},
                     &misled_inbox);
  misled.Start();
  const auto down = misled_inbox.Next<WorkerDown>();
  ASSERT_TRUE(down.has_value());
  EXPECT_THAT(down->reason, HasSubstr("its certificate is of role"));

  const TlsParty admin(authority_, TlsRole::kAdmin);
  const Duration limit = std::chrono::seconds(20);
  const WorkerAddress address{GetParam(), worker.address()};
  EXPECT_TRUE(absl::IsResourceExhausted(CallAudit(address, admin.tls.get(), limit).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(CallAudit(address, router.tls.get(), limit).status()));
  EXPECT_TRUE(absl::IsUnauthenticated(
      CallAudit({other, worker.address()}, admin.tls.get(), limit).status()));
}

TEST_P(ClusterTlsTest, WhoseCaIsTrustedNoMoreLosesHisConnectionAndGetsNoOther) {
  const TlsWorker worker(authority_, GetParam());
  const TlsParty router(authority_, TlsRole::kRouter);
  FakeInbox<RouterMail> inbox;
  WorkerLinks links({.workers = {{GetParam(), worker.address()}}, .tls = router.tls.get()}, &inbox);
  links.Start();
  ASSERT_TRUE(inbox.Next<WorkerUp>().has_value());
  const CertificateAuthority next = NewAuthority("test.local", UnixSeconds());
  worker.party.folder.Write(NewFiles(next, IdOf(TlsRoleOf(GetParam())), UnixSeconds()));
  const auto by_next = AnyServer(NewFiles(next, IdOf(TlsRole::kRouter), UnixSeconds()),
                                 next.certificate_pem());
  const auto hello = [&](const auto& credentials) {
    return CallMethod(worker.address(), credentials, "/baton.v1.Cluster/Hello");
  };
  const Time limit = SteadyNow() + std::chrono::seconds(60);
  while (hello(by_next) != grpc::StatusCode::OK && SteadyNow() < limit) {
  }
  EXPECT_EQ(hello(by_next), grpc::StatusCode::OK);
  EXPECT_EQ(hello(Client(TlsRole::kRouter)), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(inbox.Next<WorkerDown>(absl::Seconds(60)).has_value());

  // An edition that does not fit is counted, and changes nothing.
  worker.party.folder.WriteOne("tls.key", next.key_pem());
  while (worker.party.tls->refused_editions() == 0 && SteadyNow() < limit) {
  }
  EXPECT_EQ(worker.party.tls->refused_editions(), 1);
  EXPECT_EQ(hello(by_next), grpc::StatusCode::OK);
}

TEST_P(ClusterTlsTest, ACallOnAConnectionFromBeforeIsRefusedToo) {
  const TlsWorker worker(authority_, GetParam());
  const auto channel = grpc::CreateCustomChannel(worker.address(), Client(TlsRole::kRouter),
                                                 ClusterChannelArguments());
  const auto stub = v1::Cluster::NewStub(channel);
  const auto hello = [&stub] {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(std::chrono::seconds(20)));
    v1::HelloResponse response;
    return stub->Hello(&context, {}, &response).error_code();
  };
  ASSERT_EQ(hello(), grpc::StatusCode::OK);
  const SpiffeId own = IdOf(TlsRoleOf(GetParam()));
  const CertificateAuthority next = NewAuthority("test.local", UnixSeconds());
  TlsFiles both = NewFiles(next, own, UnixSeconds());
  both.ca_pem += authority_.certificate_pem();
  worker.party.folder.Write(both);
  const Time limit = SteadyNow() + std::chrono::seconds(60);
  while (worker.party.tls->current()->files != both && SteadyNow() < limit) {
    EXPECT_EQ(hello(), grpc::StatusCode::OK);
  }
  EXPECT_EQ(hello(), grpc::StatusCode::OK);
  worker.party.folder.WriteOne("ca.crt", next.certificate_pem());
  grpc::StatusCode code = grpc::StatusCode::OK;
  while (code == grpc::StatusCode::OK && SteadyNow() < limit) code = hello();
  EXPECT_EQ(code, grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(worker.party.tls->refusals().ca, 1);
  // A connection without calls ends.
  EXPECT_TRUE(channel->WaitForStateChange(GRPC_CHANNEL_READY,
                                          DeadlineAfter(std::chrono::seconds(60))));
}

// A router's connection to a worker, whose sweeps are the test's.
class RenewalTest : public ClusterTlsTest {
 protected:
  RenewalTest() : worker_(authority_, GetParam()), router_(authority_, TlsRole::kRouter) {}

  void Connect() {
    link_ = std::make_unique<WorkerLink>(
        WorkerLink::Options{.address = {GetParam(), worker_.address()},
                            .tls = router_.tls.get(),
                            .retired = &retired_,
                            .expiry_sweeps = 3,
                            .on_lost = [this](const WorkerStubs* stubs) { lost_ = stubs; },
                            .on_idle = [this] { idle_.Notify(); }},
        &inbox_);
    link_->Start();
    ASSERT_TRUE(inbox_.Next<WorkerUp>().has_value());
  }
  void TearDown() override {
    if (link_ == nullptr) return;
    link_->Stop();
    idle_.WaitForNotification();
    link_->Retire();
  }
  // One sweep after each status, until it is so.
  template <typename Condition>
  bool SweepUntil(Condition condition) {
    const Time limit = SteadyNow() + std::chrono::seconds(60);
    while (!condition() && SteadyNow() < limit) {
      if (!inbox_.Next<WorkerStatusChanged>(absl::Seconds(1)).has_value()) continue;
      link_->Sweep();
    }
    return condition();
  }
  void GiveRouter(const CertificateAuthority& issuer, const std::string& bundle) {
    TlsFiles files = NewFiles(issuer, IdOf(TlsRole::kRouter), UnixSeconds());
    files.ca_pem = bundle;
    router_.folder.Write(files);
  }

  TlsWorker worker_;
  TlsParty router_;
  FakeInbox<RouterMail> inbox_;
  RetiredChannels retired_;
  absl::Notification idle_;
  std::atomic<const WorkerStubs*> lost_ = nullptr;
  std::unique_ptr<WorkerLink> link_;
};
INSTANTIATE_TEST_SUITE_P(Workers, RenewalTest, ::testing::Values(Role::kDecode));

TEST_P(RenewalTest, NewFilesMeanANewConnectionAndTheOldOneStaysForItsCallsAWhile) {
  Connect();
  WorkerLink::Peer first = link_->peer();
  GiveRouter(authority_, authority_.certificate_pem());
  ASSERT_TRUE(SweepUntil([&] { return link_->peer().stubs != first.stubs; }));
  EXPECT_EQ(link_->peer().incarnation, first.incarnation);
  EXPECT_TRUE(link_->Holds(first.stubs.get()));
  EXPECT_TRUE(link_->IsExpiring(first.stubs.get()));
  EXPECT_FALSE(link_->IsExpiring(link_->peer().stubs.get()));
  EXPECT_EQ(lost_, nullptr);
  EXPECT_TRUE(SweepUntil([&] { return lost_ == first.stubs.get(); }));
  const WorkerStubs* const old = first.stubs.get();
  EXPECT_TRUE(link_->IsExpiring(old));  // Until the last call has let go of it.
  first = {};
  EXPECT_TRUE(SweepUntil([&] { return !link_->Holds(old); }));
  EXPECT_EQ(inbox_.Count<WorkerDown>(), 0);
  EXPECT_EQ(inbox_.Count<WorkerUp>(), 0);
}

TEST_P(RenewalTest, WithAConnectionThoseAreLostThatItReplaced) {
  Connect();
  const WorkerLink::Peer first = link_->peer();
  GiveRouter(authority_, authority_.certificate_pem());
  ASSERT_TRUE(SweepUntil([&] { return link_->peer().stubs != first.stubs; }));
  ASSERT_EQ(lost_, nullptr);
  link_->Distrust(link_->peer().stubs.get());
  ASSERT_TRUE(inbox_.Next<WorkerDown>().has_value());
  const Time limit = SteadyNow() + std::chrono::seconds(60);
  while (lost_ != first.stubs.get() && SteadyNow() < limit) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(lost_, first.stubs.get()) << "the last of those whose calls are to end";
}

TEST_P(RenewalTest, AWorkerThatIsNotYetToldOfTheNewCaKeepsTheOldConnection) {
  Connect();
  const CertificateAuthority next = NewAuthority("test.local", UnixSeconds());
  const WorkerLink::Peer first = link_->peer();
  GiveRouter(next, authority_.certificate_pem() + next.certificate_pem());
  const auto tells = [&] { return inbox_.Next<WorkerStatusChanged>().has_value(); };
  int sweeps = 0;  // Some, in which the first try to renew begins and fails.
  EXPECT_TRUE(SweepUntil([&] { return ++sweeps > 12; }));
  EXPECT_TRUE(tells());
  EXPECT_EQ(inbox_.Count<WorkerDown>(), 0);
  EXPECT_EQ(link_->peer().stubs, first.stubs);
  worker_.party.folder.WriteOne("ca.crt", next.certificate_pem() + authority_.certificate_pem());
  EXPECT_TRUE(SweepUntil([&] { return link_->peer().stubs != first.stubs; }));
  EXPECT_EQ(inbox_.Count<WorkerDown>(), 0);
}

TEST_P(RenewalTest, AWorkerOfACaThatThisSideTrustsNoMoreIsLeft) {
  Connect();
  const CertificateAuthority next = NewAuthority("test.local", UnixSeconds());
  GiveRouter(next, next.certificate_pem());
  ASSERT_TRUE(SweepUntil([&] { return link_->peer().incarnation == 0; }));
  const auto down = inbox_.Next<WorkerDown>();
  ASSERT_TRUE(down.has_value());
  EXPECT_THAT(down->reason, HasSubstr("trusted no more"));
}

TEST_P(RenewalTest, WhatRunsOnAReplacedConnectionForTooLongIsAbortedAndNewCallsComeThrough) {
  WorkerLinks links({.workers = {{GetParam(), worker_.address()}},
                     .tls = router_.tls.get(),
                     .expiry_sweeps = 2},
                    &inbox_);
  links.Start();
  ASSERT_TRUE(inbox_.Next<WorkerUp>().has_value());
  links.OpenDecode(1, 0, SampleDecode());
  ASSERT_TRUE(worker_.inbox.Next<DecodeOpened>().has_value());
  GiveRouter(authority_, authority_.certificate_pem());
  const auto closed = inbox_.Next<CallClosed>(absl::Seconds(60));
  ASSERT_TRUE(closed.has_value());
  EXPECT_TRUE(absl::IsAborted(closed->status)) << closed->status;
  EXPECT_TRUE(closed->is_replaced);
  EXPECT_TRUE(worker_.inbox.Next<CallBroken>().has_value());
  links.OpenDecode(2, 0, SampleDecode());
  EXPECT_TRUE(worker_.inbox.Next<DecodeOpened>().has_value());
  EXPECT_EQ(inbox_.Count<WorkerDown>(), 0);
}

TEST(ClusterTlsCreateTest, AFolderThatDoesNotFitIsAnError) {
  const CertificateAuthority authority = NewAuthority("test.local", UnixSeconds());
  const TlsFolder folder(NewFiles(authority, IdOf(TlsRole::kDecode), UnixSeconds()));
  EXPECT_TRUE(ClusterTls::Create(folder.path(), TlsRole::kDecode).ok());
  EXPECT_FALSE(ClusterTls::Create(folder.path(), TlsRole::kPrefill).ok());
  EXPECT_FALSE(ClusterTls::Create(folder.path() + "/none", TlsRole::kDecode).ok());
}

// A connection that has sent `words`, and whether the server ends it before its patience does.
class Stranger {
 public:
  Stranger(int port, const std::string& words) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    EXPECT_EQ(send(socket_, words.data(), words.size(), 0), std::ssize(words));
  }
  ~Stranger() { close(socket_); }
  bool IsClosed() const {
    const timeval patience{.tv_sec = 60};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    char bytes[4096];
    ssize_t got = 0;
    while ((got = recv(socket_, bytes, sizeof(bytes), 0)) > 0) continue;
    return got == 0 || errno == ECONNRESET;
  }

 private:
  const int socket_;
};

TEST(HandshakeTest, WhoDoesNotFinishItIsCutSoon) {
  const CertificateAuthority authority = NewAuthority("test.local", UnixSeconds());
  const TlsWorker with_tls(authority, Role::kDecode);
  FakeWorkerInbox inbox;
  WorkerServer plain({.hello = HelloOf(Role::kDecode, 7)}, inbox.Of(Role::kDecode));
  ASSERT_TRUE(plain.Start().ok());
  const std::string half_a_hello("\x16\x03\x01\x02\x00\x01\x00", 7);
  const Stranger silent_to_tls(with_tls.server.port(), "");
  const Stranger half(with_tls.server.port(), half_a_hello);
  const Stranger silent(plain.port(), "");
  const Stranger half_a_preface(plain.port(), "PRI * HTTP/2");
  for (const Stranger* one : {&silent_to_tls, &half, &silent, &half_a_preface}) {
    EXPECT_TRUE(one->IsClosed());
  }
}

}  // namespace
}  // namespace baton
