#include "common/rpc/admin_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "baton/v1/admin.grpc.pb.h"
#include "tests/unit/common/rpc/tls_cluster.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr Duration kPatience = std::chrono::seconds(20);

// Says which method was called; has no audit.
class NamingAdmin : public v1::Admin::Service {
  grpc::Status Status(grpc::ServerContext*, const v1::AdminRequest*,
                      v1::AdminAnswer* answer) override {
    answer->set_json("status");
    return grpc::Status::OK;
  }
  grpc::Status Audit(grpc::ServerContext* context, const v1::AdminRequest*,
                     v1::AdminAnswer*) override {
    context->AddTrailingMetadata(kReasonKey, "UNAVAILABLE");
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the node stands still");
  }
  grpc::Status Drain(grpc::ServerContext*, const v1::AdminRequest*,
                     v1::AdminAnswer* answer) override {
    answer->set_json("drain");
    return grpc::Status::OK;
  }
};

class AdminCallTest : public ::testing::Test {
 protected:
  AdminCallTest() : router_(authority_, TlsRole::kRouter) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", router_.tls->MakeServerCredentials().value(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  absl::StatusOr<std::string> Call(AdminMethod method, const TlsParty& caller) const {
    return CallAdmin(address_, method, *caller.tls, kPatience);
  }

  const CertificateAuthority authority_ = NewAuthority("test.local", UnixSeconds());
  const TlsParty router_;
  NamingAdmin service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

TEST_F(AdminCallTest, BringsTheDocumentOfTheMethod) {
  const TlsParty admin(authority_, TlsRole::kAdmin);
  EXPECT_EQ(Call(AdminMethod::kStatus, admin).value(), "status");
  EXPECT_EQ(Call(AdminMethod::kDrain, admin).value(), "drain");
  const absl::Status no_audit = Call(AdminMethod::kAudit, admin).status();
  EXPECT_EQ(no_audit, absl::UnavailableError("the node stands still"));
}

TEST_F(AdminCallTest, SaysWhoIsNotWhoItShouldBe) {
  const TlsParty router(authority_, TlsRole::kRouter);
  EXPECT_TRUE(absl::IsPermissionDenied(Call(AdminMethod::kStatus, router).status()));
  const CertificateAuthority other = NewAuthority("test.local", UnixSeconds());
  const TlsParty stranger(other, TlsRole::kAdmin);
  EXPECT_TRUE(absl::IsUnavailable(Call(AdminMethod::kStatus, stranger).status()));
  // A worker where a router should be.
  const TlsWorker worker(authority_, Role::kDecode);
  const TlsParty admin(authority_, TlsRole::kAdmin);
  const absl::Status misled =
      CallAdmin(worker.address(), AdminMethod::kStatus, *admin.tls, kPatience).status();
  EXPECT_TRUE(absl::IsUnauthenticated(misled)) << misled;
  EXPECT_THAT(misled.message(), HasSubstr("role decode where router"));
}

TEST_F(AdminCallTest, NobodyThereIsAnErrorWithinTheLimit) {
  const TlsParty admin(authority_, TlsRole::kAdmin);
  server_->Shutdown();
  const absl::Status gone = Call(AdminMethod::kStatus, admin).status();
  EXPECT_TRUE(absl::IsUnavailable(gone) || absl::IsDeadlineExceeded(gone)) << gone;
}

}  // namespace
}  // namespace baton
