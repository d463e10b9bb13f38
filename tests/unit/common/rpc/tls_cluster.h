#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/rpc/cluster_tls.h"
#include "common/rpc/connection.h"
#include "common/rpc/worker_server.h"
#include "tests/unit/common/rpc/eager_server.h"
#include "tests/unit/common/rpc/test_cluster.h"
#include "tests/unit/common/tls/tls_folder.h"

// Servers and clients with certificates, good and bad ones.
namespace baton {

// Who serves or asks properly, by a folder of its own.
struct TlsParty {
  TlsParty(const CertificateAuthority& authority, TlsRole role)
      : folder(NewFiles(authority, IdOf(role), UnixSeconds())) {
    auto made = ClusterTls::Create(folder.path(), role);
    EXPECT_TRUE(made.ok()) << made.status();
    tls = *std::move(made);
  }

  TlsFolder folder;
  std::unique_ptr<ClusterTls> tls;
};

// A worker that asks for certificates.
struct TlsWorker {
  // With a full inbox it refuses what it would have to think about.
  TlsWorker(const CertificateAuthority& authority, Role role, bool full = false)
      : inbox(full),
        party(authority, TlsRoleOf(role)),
        server({.hello = HelloOf(role, 7),
                .tls = party.tls.get(),
                .status =
                    [] {
                      WorkerStatus status;
                      status.incarnation = 7;
                      return status;
                    }},
               inbox.Of(role)) {
    const absl::Status status = server.Start();
    EXPECT_TRUE(status.ok()) << status;
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", server.port()); }

  FakeWorkerInbox inbox;
  TlsParty party;
  EagerServer server;
};

// A server that shows these certificates, whatever is wrong with them, to whom `ca_pem` knows.
struct ShowingServer {
  ShowingServer(const TlsFiles& files, const std::string& ca_pem) {
    namespace tls = grpc::experimental;
    tls::TlsServerCredentialsOptions options(std::make_shared<tls::StaticDataCertificateProvider>(
        ca_pem, std::vector<tls::IdentityKeyCertPair>{{files.key_pem, files.chain_pem}}));
    options.watch_root_certs();
    options.watch_identity_key_cert_pairs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    grpc::ServerBuilder builder;
    builder.RegisterAsyncGenericService(&service);
    queue = builder.AddCompletionQueue();
    builder.AddListeningPort("127.0.0.1:0", tls::TlsServerCredentials(options), &port);
    server = builder.BuildAndStart();
    EXPECT_NE(server, nullptr);
  }
  ~ShowingServer() {
    server->Shutdown();
    queue->Shutdown();
    void* tag = nullptr;
    for (bool ok = false; queue->Next(&tag, &ok);) {
    }
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port); }

  int port = 0;
  grpc::AsyncGenericService service;
  std::unique_ptr<grpc::ServerCompletionQueue> queue;
  std::unique_ptr<grpc::Server> server;
};

// The credentials of a client that believes any server: the server's verdict alone counts. Empty
// files: it shows no certificate.
inline std::shared_ptr<grpc::ChannelCredentials> AnyServer(const TlsFiles& files,
                                                           const std::string& ca_pem) {
  namespace tls = grpc::experimental;
  std::vector<tls::IdentityKeyCertPair> pairs;
  if (!files.key_pem.empty()) pairs.push_back({files.key_pem, files.chain_pem});
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(
      std::make_shared<tls::StaticDataCertificateProvider>(ca_pem, pairs));
  options.watch_root_certs();
  if (!pairs.empty()) options.watch_identity_key_cert_pairs();
  options.set_check_call_host(false);
  options.set_certificate_verifier(std::make_shared<tls::NoOpCertificateVerifier>());
  return tls::TlsCredentials(options);
}

inline bool IsStream(const std::string& path) {
  const std::string method = path.substr(path.rfind('/') + 1);
  return method == "Watch" || method == "ServerReflectionInfo";
}

// What a call to a method comes to. A stream is cut after its first message, which goes to
// `answer`.
inline grpc::StatusCode CallMethod(const std::string& address,
                                   const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                   const std::string& path, const std::string& request = "",
                                   std::string* answer = nullptr) {
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(
      grpc::CreateCustomChannel(address, credentials, ClusterChannelArguments()));
  grpc::ClientContext context;
  context.set_deadline(DeadlineAfter(std::chrono::seconds(20)));
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, path, &queue);
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return ok;
  };
  const grpc::Slice sent(request);
  grpc::ByteBuffer got;
  grpc::Status status;
  call->StartCall(nullptr);
  if (wait()) {
    call->WriteLast(grpc::ByteBuffer(&sent, 1), grpc::WriteOptions(), nullptr);
    wait();
    call->Read(&got, nullptr);
    const bool has_answer = wait();
    if (has_answer && answer != nullptr) {
      std::vector<grpc::Slice> slices;
      (void)got.Dump(&slices);
      for (const grpc::Slice& slice : slices) answer->append(slice.begin(), slice.end());
    }
    if (has_answer && IsStream(path)) context.TryCancel();
  }
  call->Finish(&status, nullptr);
  wait();
  queue.Shutdown();
  return status.error_code();
}

}  // namespace baton
