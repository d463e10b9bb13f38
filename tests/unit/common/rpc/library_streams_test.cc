#include "common/rpc/library_streams.h"

#include <gtest/gtest.h>
#include <grpcpp/health_check_service_interface.h>

#include <atomic>
#include <memory>
#include <string>

#include "tests/unit/common/rpc/tls_cluster.h"

namespace baton {
namespace {

constexpr char kWatch[] = "/grpc.health.v1.Health/Watch";
constexpr char kReflect[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

// A stream with one request, which its caller never ends.
class EndlessCall {
 public:
  EndlessCall(const std::string& address, const std::string& path, const std::string& request,
             const std::shared_ptr<grpc::ChannelCredentials>& credentials)
      : stub_(grpc::CreateCustomChannel(address, credentials, ClusterChannelArguments())) {
    context_.set_deadline(DeadlineAfter(std::chrono::seconds(60)));
    call_ = stub_.PrepareCall(&context_, path, &queue_);
    call_->StartCall(nullptr);
    Wait();
    Ask(request);
  }
  ~EndlessCall() {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) continue;
  }
  void Ask(const std::string& request) {
    const grpc::Slice sent(request);
    call_->Write(grpc::ByteBuffer(&sent, 1), nullptr);
    Wait();
  }
  // It is open: an answer has come.
  bool HasAnswer() {
    call_->Read(&got_, nullptr);
    return Wait();
  }
  // How the server ends it.
  grpc::StatusCode End() {
    while (HasAnswer()) continue;
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Wait();
    return status.error_code();
  }

 private:
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
    return ok;
  }

  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> call_;
  grpc::ByteBuffer got_;
};

const std::string& ListServices() {
  static const std::string request("\x3a\x01*", 3);  // Field 7 of a ServerReflectionRequest.
  return request;
}

TEST(LibraryStreamsTest, OfWhomNobodyTrustsAnyMoreAreEndedAndOthersStay) {
  const CertificateAuthority authority = NewAuthority("test.local", UnixSeconds());
  const CertificateAuthority next = NewAuthority("test.local", UnixSeconds());
  const TlsWorker worker(authority, Role::kDecode);
  const SpiffeId own = IdOf(TlsRole::kDecode);
  // Both are known, then the old one leaves.
  TlsFiles both = NewFiles(next, own, UnixSeconds());
  both.ca_pem += authority.certificate_pem();
  worker.party.folder.Write(both);
  const Time limit = SteadyNow() + std::chrono::seconds(60);
  const auto hello_by = [&](const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    return CallMethod(worker.address(), credentials, "/baton.v1.Cluster/Hello");
  };
  const auto by_old = AnyServer(NewFiles(authority, IdOf(TlsRole::kAdmin), UnixSeconds()),
                                both.ca_pem);
  const auto by_new = AnyServer(NewFiles(next, IdOf(TlsRole::kAdmin), UnixSeconds()), both.ca_pem);
  while (hello_by(by_new) != grpc::StatusCode::OK && SteadyNow() < limit) continue;
  EndlessCall watch(worker.address(), kWatch, "", by_old);
  EndlessCall reflection(worker.address(), kReflect, ListServices(), by_old);
  EndlessCall stays(worker.address(), kReflect, ListServices(), by_new);
  ASSERT_TRUE(watch.HasAnswer() && reflection.HasAnswer() && stays.HasAnswer());
  worker.party.folder.WriteOne("ca.crt", next.certificate_pem());
  EXPECT_EQ(watch.End(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(reflection.End(), grpc::StatusCode::CANCELLED);
  // Whoever is trusted may go on, and come.
  EndlessCall later(worker.address(), kWatch, "", by_new);
  EXPECT_TRUE(later.HasAnswer());
  stays.Ask(ListServices());
  EXPECT_TRUE(stays.HasAnswer());
}

TEST(LibraryStreamsTest, ACallThatCameWhileTheTrustWentIsEndedToo) {
  std::atomic<bool> trusts = true;
  LibraryStreams streams([&](const grpc::AuthContext&) { return trusts.load(); });
  grpc::ServerBuilder builder;
  ApplyServerSettings(4, &builder);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
  factories.push_back(streams.MakeFactory());
  builder.experimental().SetInterceptorCreators(std::move(factories));
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  const auto server = builder.BuildAndStart();
  const std::string address = absl::StrCat("127.0.0.1:", port);
  EndlessCall open(address, kWatch, "", grpc::InsecureChannelCredentials());
  ASSERT_TRUE(open.HasAnswer());
  streams.CancelUntrusted();  // Nobody is.
  trusts = false;
  EndlessCall late(address, kReflect, ListServices(), grpc::InsecureChannelCredentials());
  EXPECT_EQ(late.End(), grpc::StatusCode::CANCELLED);
  streams.CancelUntrusted();
  EXPECT_EQ(open.End(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace baton
